"""Kafka and Redis of one run directory. A file remembers their ports and processes, so that they are found again."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rollstream.local.kafka import START_SECONDS, KafkaCluster
from rollstream.local.kafka_properties import ClusterPlan, log_dir_of, plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.processes import TIED_TO_PARENT, ChildProcess, Placement, ProcessRecord
from rollstream.local.redis import RedisServer
from rollstream.process.files import replace_text, waited_for
from rollstream.schemas.errors import LocalStackError

STATE_FILE = "stack.json"


class StackState(BaseModel):
    """What `stack.json` holds: the stack's ports and ids, which never change, and its processes at the last `up`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    cluster: ClusterPlan
    redis_port: int
    processes: dict[str, ProcessRecord] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service. `pid` is None if it does not run; `died` says that it ended although nobody stopped it."""

    name: str
    address: str
    pid: int | None
    died: bool


class LocalStack:
    """Kafka and Redis under `run_dir`, started by this process or by an earlier one.

    `brokers` None: 1 for a new stack; an existing stack keeps its number. By default the stack ends with the thread
    that called `up`. With `Placement(dies_with_parent=False)` it goes on in the background.
    """

    def __init__(
        self, run_dir: Path, *, brokers: Literal[1, 3] | None = None, placement: Placement = TIED_TO_PARENT
    ) -> None:
        self._run_dir = run_dir.resolve()
        self._brokers = brokers
        self._placement = placement
        self._state: StackState | None = None
        self._kafka: KafkaCluster | None = None
        self._redis: RedisServer | None = None

    @property
    def came_from(self) -> Path | None:
        """The run directory of the last start, if that was another one: this is a copy of it, or was moved."""
        last = log_dir_of(self._run_dir / "kafka" / "node-1")
        here = self._run_dir / "kafka" / "node-1" / "log"
        return None if last is None or last == here else Path(*last.parts[:-3])

    @property
    def kafka(self) -> KafkaCluster:
        """The cluster; raises LocalStackError before `up`."""
        if self._kafka is None:
            raise LocalStackError(f"the stack of {self._run_dir} is not up: call up() first")
        return self._kafka

    @property
    def redis(self) -> RedisServer:
        """The Redis server; raises LocalStackError before `up`."""
        if self._redis is None:
            raise LocalStackError(f"the stack of {self._run_dir} is not up: call up() first")
        return self._redis

    def up(self) -> None:
        """Start what does not run yet, and wait until it answers. If something fails, what was started here is stopped.

        Raises a LocalStackError.
        """
        self._run_dir.mkdir(parents=True, exist_ok=True)
        with self._exclusive():
            self._attach(
                self._load() or StackState(cluster=plan_cluster(self._brokers or 1), redis_port=free_ports(1)[0])
            )
            # A directory that came from elsewhere names that one's processes. From here on it has none but its own.
            self._save()
            brokers, has_redis = set(self.kafka.processes), self.redis.process is not None
            try:
                self.redis.start()
                self.kafka.launch()
                # Before the wait: if this process is killed meanwhile, the next one still finds the brokers.
                self._save()
                self.kafka.wait_ready(START_SECONDS)
            except BaseException:
                self._stop(keep_brokers=brokers, keep_redis=has_redis)
                raise

    def down(self) -> bool:
        """Stop everything and keep the data; False if there was nothing to stop."""
        state = self._load()
        if state is None:
            return False
        with self._exclusive():
            if self._kafka is None:
                self._attach(state)
            was_running = bool(self.kafka.processes) or self.redis.process is not None
            self._stop()
        return was_running

    def status(self) -> tuple[ServiceStatus, ...]:
        """All services of this run directory, running or not; empty if no stack was ever started here."""
        state = self._load()
        if state is None:
            return ()
        addresses = {f"kafka-{node.node_id}": node.address for node in state.cluster.nodes}
        addresses["redis"] = f"127.0.0.1:{state.redis_port}"
        running = self._running(state)
        return tuple(
            ServiceStatus(
                name=name,
                address=address,
                pid=running[name].pid if name in running else None,
                died=name in state.processes and name not in running,
            )
            for name, address in addresses.items()
        )

    def _running(self, state: StackState) -> dict[str, ChildProcess]:
        """The recorded processes that still run. A pid that now belongs to another process does not count."""
        if self.came_from is not None:
            return {}
        found = {name: ChildProcess.find(record) for name, record in state.processes.items()}
        return {name: process for name, process in found.items() if process is not None}

    def _attach(self, state: StackState) -> None:
        running = self._running(state)
        brokers = {
            node.node_id: running[f"kafka-{node.node_id}"]
            for node in state.cluster.nodes
            if f"kafka-{node.node_id}" in running
        }
        self._state = state
        self._kafka = KafkaCluster(self._run_dir / "kafka", state.cluster, placement=self._placement, running=brokers)
        self._redis = RedisServer(
            self._run_dir / "redis", state.redis_port, placement=self._placement, running=running.get("redis")
        )

    def _load(self) -> StackState | None:
        path = self._run_dir / STATE_FILE
        if not path.exists():
            return None
        try:
            state = StackState.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise LocalStackError(
                f"{path} is damaged ({error.errors()[0]['msg']}): end what still runs from {self._run_dir}, then "
                "remove the file and the kafka directory beside it, or use another --run-dir."
            ) from error
        existing = len(state.cluster.nodes)
        if self._brokers not in (None, existing):
            raise LocalStackError(
                f"{self._run_dir} holds a cluster of {existing} broker(s), {self._brokers} were asked for: a cluster "
                "keeps its number, so leave --brokers out or use another --run-dir."
            )
        return state

    def _save(self) -> None:
        assert self._state is not None
        processes = {f"kafka-{node_id}": process.record for node_id, process in self.kafka.processes.items()}
        if (redis := self.redis.process) is not None:
            processes["redis"] = redis.record
        self._state = self._state.model_copy(update={"processes": processes})
        replace_text(self._run_dir / STATE_FILE, self._state.model_dump_json(indent=2))

    def _stop(self, *, keep_brokers: Collection[int] = (), keep_redis: bool = False) -> None:
        self.kafka.stop(keep=keep_brokers)
        if not keep_redis:
            self.redis.stop()
        self._save()

    def _exclusive(self) -> AbstractContextManager[None]:
        """Only one `up` or `down` of a run directory at a time."""
        return waited_for(self._run_dir / "stack.lock")
