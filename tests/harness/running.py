"""A run on the real broker whose stages are real processes that tests start, kill and read from."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner

from rollstream.bus import run as bus_run
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import Record
from rollstream.schemas.topics import PROMPTS, WEIGHTS, Topic
from rollstream.schemas.weights import WeightsPublished
from tests.harness.builders import published
from tests.harness.forking import start_command, start_forked
from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import DEADLINE_SECONDS

R = TypeVar("R", bound=Record)

# Several stages share few cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_on(kafka: KafkaSettings, name: str, *, registry_url: str | None = None) -> bus_run.Run:
    """The run called `name` on this cluster."""
    return bus_run.Run(StageSettings(run=name, kafka=kafka, registry_url=registry_url))


@dataclass
class Run:
    """One run: topics on a broker, a directory, and a settings file that grows table by table."""

    kafka: KafkaSettings
    name: str
    directory: Path
    redis_url: str | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    running: list[StartedProcess] = field(default_factory=list)

    @property
    def on_bus(self) -> bus_run.Run:
        """The product's own view of this run."""
        return run_on(self.kafka, self.name)

    @property
    def config(self) -> Path:
        """The settings file, written afresh."""
        shared = {"run": self.name, "weight_store": str(self.directory / "weights"), **self.shared}
        if self.redis_url:
            shared["redis_url"] = self.redis_url
        lines = [f"{key} = {json.dumps(value)}" for key, value in shared.items()]
        tables = {"kafka": {"bootstrap_servers": self.kafka.bootstrap_servers}, **self.tables}
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        path = self.directory / "rollstream.toml"
        # A stage that was started a moment ago may be reading it.
        new = path.with_name(f".{path.name}")
        new.write_text("\n".join(lines) + "\n")
        new.replace(path)
        return path

    def start(self, stage: str, *options: str, **env: str) -> StartedProcess:
        """Start `rollstream STAGE OPTIONS`, forked as `start_command` does it."""
        words = (stage, *options, "--config", str(self.config))
        return self._keep(start_command(*words, log=self._next_log(), env=_ONE_THREAD | env))

    def start_forked(self, main: Callable[[], None]) -> StartedProcess:
        """Run a stage that a test has changed, as `start_forked` does it."""
        return self._keep(start_forked(main, log=self._next_log(), env=_ONE_THREAD))

    def start_as_people_do(self, stage: str, **env: str) -> StartedProcess:
        """Start `rollstream STAGE` as a process that imports everything by itself."""
        command = [sys.executable, "-m", "rollstream.cli.main", stage, "--config", str(self.config)]
        return self._keep(start_process(command, log=self._next_log(), env=_ONE_THREAD | env))

    def command(self, *words: str) -> str:
        """Standard output of `rollstream WORDS`, which must succeed; in this process."""
        from rollstream.cli.main import cli

        result = CliRunner().invoke(cli, [*words, "--config", str(self.config)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def said(self) -> str:
        """What the process that started last wrote to its log."""
        return self.running[-1].said()

    def _next_log(self) -> Path:
        return self.directory / f"{len(self.running)}.log"

    def _keep(self, started: StartedProcess) -> StartedProcess:
        self.running.append(started)
        return started

    def publish(self, topic: str, values: Iterable[tuple[str, bytes | None]]) -> list[tuple[int, int]]:
        """Put keyed bytes on a topic of the run; where they lie."""
        publisher = Publisher(self.kafka, client_id="outside")
        futures = [
            publisher.publish_soon(OutRecord(topic=f"{self.name}.{topic}", key=key.encode(), value=value))
            for key, value in values
        ]
        # A broker whose disk stands still for seconds has no leaders for a while.
        placed = [future.result(DEADLINE_SECONDS) for future in futures]
        publisher.close()
        return [(place.partition, place.offset) for place in placed]

    def submit(self, *prompts: PromptSubmitted, topic: Topic[PromptSubmitted] = PROMPTS) -> None:
        """Put prompts on their topic, as any client could."""
        codec = AvroCodec(topic)
        self.publish(topic.name, [(prompt.group_id, codec.encode(prompt)) for prompt in prompts])

    def messages(self, topic: str) -> list[KafkaMessage]:
        """Everything that is on a topic now."""
        with TopicReader(self.kafka, [f"{self.name}.{topic}"]) as reader:
            return list(reader.to_end())

    def records(self, topic: Topic[R]) -> list[R]:
        """Every readable record that is on a topic now."""
        codec, found = AvroCodec(topic), []
        for message in self.messages(topic.name):
            try:
                found.append(codec.decode(message.value))
            except DecodeError:
                continue
        return found

    def publish_weights(self, version: int, content: bytes = b"weights", **fields: Any) -> WeightsPublished:
        """Store a version's file and publish it, as a trainer would."""
        store = DirectoryWeightStore(self.directory / "weights")

        def save(path: Path) -> None:
            (path / "model.safetensors").write_bytes(content)

        stored = store.write(f"{version}-test", save)
        record = published(version, **{"uri": stored.uri, "files": stored.files, **fields})
        self.publish("weights", [("policy", AvroCodec(WEIGHTS).encode(record))])
        return record

    def committed(self, group: str, topic: str) -> int:
        """Sum of what a group has committed on a topic."""
        return sum(KafkaAdmin(self.kafka).committed_offsets(f"{self.name}.{group}", f"{self.name}.{topic}").values())


@contextmanager
def a_run(
    kafka: str | KafkaSettings,
    name: str,
    directory: Path,
    *,
    partitions: int = 2,
    redis_url: str | None = None,
) -> Iterator[Run]:
    """A fresh run with its topics; kills what still runs at the end."""
    cluster = KafkaSettings(bootstrap_servers=kafka) if isinstance(kafka, str) else kafka
    run = Run(kafka=cluster, name=name, directory=directory, redis_url=redis_url)
    KafkaAdmin(run.kafka).create_topics(name, partitions=partitions)
    try:
        yield run
    finally:
        for process in run.running:
            process.kill()


def readiness(port: int) -> dict[str, dict[str, object]]:
    """What `/readyz` on this port says of each part of a process; nothing before it is served."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?verbose", timeout=10) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
    except OSError:
        return {}
    checks: dict[str, dict[str, object]] = json.loads(body)
    return checks


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)
