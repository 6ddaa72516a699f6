"""Starts and stops a Kafka cluster of one or three brokers on this machine, in KRaft mode and without containers."""

import logging
import os
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from pydantic import SecretStr

from rollstream.local.java import find_java
from rollstream.local.kafka_jars import kafka_class_path
from rollstream.local.kafka_properties import (
    PROPERTIES_FILE,
    ClusterPlan,
    NodePlan,
    server_properties,
)
from rollstream.local.ports import require_free
from rollstream.local.processes import TIED_TO_PARENT, ChildProcess, Placement, failed_start, stop_all
from rollstream.process.files import free_bytes, write_private
from rollstream.schemas.errors import DiskFullError, StartFailedError

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# Chosen for a quick start and little memory: about 175 MB.
JVM_FLAGS = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
MIN_FREE_BYTES = 2**30
# On a machine that is busy with other work a broker took 77 s. One that ends is noticed at once.
START_SECONDS = 240.0
FORMAT_SECONDS = 120.0
STOP_GRACE_SECONDS = 15.0
LAST_BROKER_GRACE_SECONDS = 1.0
# Each question is a client of its own, which takes CPU time from the brokers that start.
ASK_EVERY_SECONDS = 0.1

logger = logging.getLogger(__name__)


class KafkaCluster:
    """The brokers of `plan`, their data and logs under `directory`.

    `running` are brokers that an earlier process started. `properties` are added to those of each broker. A cluster
    that does not let everybody in needs `format_words`, more words for the tool that formats, such as a first user; and
    `client`, librdkafka's settings with which it is asked whether it is up. With `dies_with_parent` in the placement
    (the default) the kernel kills the brokers when the thread that started them ends.
    """

    def __init__(
        self,
        directory: Path,
        plan: ClusterPlan,
        *,
        placement: Placement = TIED_TO_PARENT,
        running: Mapping[int, ChildProcess] | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
        format_words: Sequence[str] = (),
        client: Mapping[str, SecretStr] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self._directory = directory.resolve()
        self._placement = placement
        self._processes = dict(running or {})
        self._properties = properties
        self._format_words = format_words
        self._client = client

    @property
    def bootstrap_servers(self) -> str:
        return self.plan.bootstrap_servers

    @property
    def processes(self) -> Mapping[int, ChildProcess]:
        """The brokers that run, by node id."""
        return {node_id: process for node_id, process in self._processes.items() if process.is_running()}

    def start(self) -> None:
        """Launch the brokers that do not run (new, stopped or killed), and wait until the whole cluster answers.

        Raises a LocalStackError.
        """
        self.launch()
        self.wait_ready(START_SECONDS)

    def launch(self) -> None:
        """Format new nodes and start those that do not run, without waiting for them to answer.

        Each start makes `server.properties` again: a directory that was moved or copied opens its own data.
        Raises a LocalStackError (no Java, damaged jars, port taken, disk full).
        """
        missing = [node for node in self.plan.nodes if node.node_id not in self.processes]
        if not missing:
            return
        self._require_room()
        for node in missing:
            require_free(node.port, f"broker {node.node_id}")
            require_free(node.controller_port, f"the controller of broker {node.node_id}")
        for node in missing:
            self._write_properties(node)
        self._format(missing)
        for node in missing:
            self._start_process(node)

    def stop(self, *, keep: Collection[int] = ()) -> None:
        """SIGTERM to all brokers but those to `keep`, at once, then SIGKILL to those that do not end.

        The last of three never ends by itself: to stop in order it would need a quorum of controllers.
        """
        brokers = [self._processes.pop(node_id) for node_id in set(self._processes).difference(keep)]
        for broker in brokers:
            broker.terminate()
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        while sum(b.is_running() for b in brokers) > len(brokers) // 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        stop_all(brokers, LAST_BROKER_GRACE_SECONDS)

    def wait_ready(self, timeout_seconds: float) -> None:
        """Return when each node of the plan answers and lists all nodes.

        Each node is asked, because the other nodes list a killed one until its session ends.
        """
        deadline = time.monotonic() + timeout_seconds
        for node in self.plan.nodes:
            while not self._names_all(node):
                self._require_alive()
                if time.monotonic() > deadline:
                    raise failed_start(
                        f"broker {node.node_id} at {node.address} did not answer for the whole cluster of "
                        f"{len(self.plan.nodes)} within {timeout_seconds:.0f} s",
                        self._log(node),
                    )
                time.sleep(ASK_EVERY_SECONDS)

    def _names_all(self, node: NodePlan) -> bool:
        from confluent_kafka import KafkaException

        from rollstream.bus.clients import admin_client
        from rollstream.process.settings.base import KafkaSettings

        kafka = KafkaSettings(bootstrap_servers=node.address, security=dict(self._client))
        try:
            with admin_client(kafka, **{"reconnect.backoff.max.ms": 100}) as admin:
                named = admin.describe_cluster(request_timeout=1.0).result(timeout=5.0).nodes
        # A node that has just started may answer so late on a busy machine that nobody waits any more.
        except (KafkaException, TimeoutError):
            return False
        return len(named) == len(self.plan.nodes)

    @cached_property
    def _java(self) -> tuple[str, ...]:
        java = find_java()
        logger.info("Kafka runs on Java %d from %s (%s)", java.major, java.found_in, java.program)
        return (str(java.program), *JVM_FLAGS, "-cp", kafka_class_path(), f"-Dlog4j2.configurationFile={LOG_SETTINGS}")

    def _node(self, node_id: int) -> NodePlan:
        return next(node for node in self.plan.nodes if node.node_id == node_id)

    def _home(self, node: NodePlan) -> Path:
        return self._directory / f"node-{node.node_id}"

    def _log(self, node: NodePlan) -> Path:
        return self._home(node) / "kafka.log"

    def _require_room(self) -> None:
        free = free_bytes(self._directory)
        if free < MIN_FREE_BYTES:
            raise DiskFullError(
                f"{self._directory} has {free / 2**20:.0f} MiB free, Kafka needs at least "
                f"{MIN_FREE_BYTES / 2**20:.0f} MiB: make room there, or choose another --run-dir."
            )

    def _format(self, nodes: list[NodePlan]) -> None:
        """Format the data directories of new nodes, all at the same time. Nodes that have data stay as they are."""
        new = [node for node in nodes if not (self._home(node) / "log" / "meta.properties").exists()]
        finish_formats({self._home(node): self._start_format(node) for node in new}, FORMAT_SECONDS)

    def _write_properties(self, node: NodePlan) -> None:
        home = self._home(node)
        home.mkdir(parents=True, exist_ok=True)
        properties = home / PROPERTIES_FILE
        # It may hold passwords.
        write_private(properties, server_properties(self.plan, node, home / "log", self._properties))

    def _start_format(self, node: NodePlan) -> subprocess.Popen[str]:
        home = self._home(node)
        single = len(self.plan.nodes) == 1
        quorum = ("--standalone",) if single else ("--initial-controllers", self.plan.initial_controllers)
        tool = (
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self.plan.cluster_id,
            "-c",
            str(home / PROPERTIES_FILE),
            *quorum,
        )
        command = (*self._java, f"-Drollstream.log={home / 'format.log'}", *tool, *self._format_words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _start_process(self, node: NodePlan) -> None:
        home = self._home(node)
        command = (*self._java, f"-Drollstream.log={self._log(node)}", "kafka.Kafka", str(home / PROPERTIES_FILE))
        environment = {key: value for key, value in os.environ.items() if key != "CLASSPATH"}
        self._processes[node.node_id] = ChildProcess.start(
            command, home / "kafka.out", env=environment, placement=self._placement
        )

    def _require_alive(self) -> None:
        for node_id, process in self._processes.items():
            if (code := process.exit_code()) is not None:
                node = self._node(node_id)
                log = self._log(node) if self._log(node).exists() else self._home(node) / "kafka.out"
                raise failed_start(f"broker {node_id} ended with exit code {code}", log)


def finish_formats(tools: Mapping[Path, subprocess.Popen[str]], timeout_seconds: float) -> None:
    """Wait for the tools that format brokers, by the brokers' directories. None is left behind.

    Raises `StartFailedError` if one fails or takes longer.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        for home, tool in tools.items():
            output, _ = tool.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if tool.returncode != 0:
                raise StartFailedError(f"formatting the broker's directory {home} failed:\n{output}")
    except subprocess.TimeoutExpired as error:
        raise StartFailedError(
            f"formatting the broker's directory {home} took longer than {timeout_seconds:g} s: the machine or its disk "
            "is too busy; end other work on it, or choose a --run-dir on a faster disk, and start again"
        ) from error
    finally:
        for tool in tools.values():
            with tool:
                tool.kill()
