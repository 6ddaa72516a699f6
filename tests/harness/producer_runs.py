"""A producer in a thread, on topics whose other sides a test plays."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.stop import Stop
from rollstream.producers.loop import Producer
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.build import opened_source, sampling_of
from rollstream.producers.states.loop import run_states
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import LEDGER, PROMPTS
from tests.harness.builders import an_entry
from tests.harness.waits import wait_until

DEADLINE_SECONDS = 20.0
SETTLE_SECONDS = 0.8


class Run:
    """A run's topics, what lies on `prompts`, and a hand that writes the ledger as a trainer would."""

    def __init__(self, kafka: str, run: str, directory: Path) -> None:
        self.name = run
        self.kafka = KafkaSettings(bootstrap_servers=kafka)
        self.directory = directory
        KafkaAdmin(self.kafka).create_topics(run, partitions=2)
        self.publisher = Publisher(self.kafka, client_id="test")
        self.reader = TopicReader(self.kafka, [PROMPTS.of(run)])
        self.prompts: list[PromptSubmitted] = []
        self.version = -1
        self.write(EntryKind.RESTART, parent=None)

    def settings(self, rows: int = 100, **fields: Any) -> ProducerSettings:
        path = self.directory / f"{fields.get('name', 'tasks')}.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"{row}="}) + "\n" for row in range(rows)))
        values = {"run": self.name, "kafka": self.kafka, "source": "jsonl", "path": path, "group_size": 2, **fields}
        return ProducerSettings(**values)

    def write(self, kind: EntryKind, *groups: str, parent: int | None, checkpoint: str | None = None) -> LedgerEntry:
        if kind is not EntryKind.DROPS:
            self.version += 1
        entry = an_entry(
            kind=kind, weight_version=self.version, parent_version=parent, step=0, checkpoint=checkpoint,
            closed=tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in groups),
        )  # fmt: skip
        self.put_entry(entry)
        return entry

    def put_entry(self, entry: LedgerEntry) -> None:
        self.put(LEDGER.of(self.name), AvroCodec(LEDGER).encode(entry))

    def put(self, topic: str, value: bytes) -> None:
        self.publisher.publish_soon(OutRecord(topic=topic, value=value, key=b"k")).result(DEADLINE_SECONDS)

    def step(self, *groups: str, checkpoint: str | None = None) -> None:
        self.write(EntryKind.STEP, *groups, parent=self.version, checkpoint=checkpoint)

    def let_prompts_expire(self) -> None:
        """Delete what lies on `prompts`, as the broker does with what is older than its retention."""
        client = AdminClient(self.kafka.client_config())
        name = PROMPTS.of(self.name)
        ends = [TopicPartition(name, number, -1) for number in range(2)]
        for future in client.delete_records(ends).values():
            future.result(DEADLINE_SECONDS)

    def groups(self, producer: str = "producer") -> list[str]:
        ours = [prompt for prompt in self.prompts if prompt.producer == producer]
        return [prompt.group_id for prompt in sorted(ours, key=lambda prompt: prompt.sequence)]

    def poll(self) -> None:
        codec = AvroCodec(PROMPTS)
        values = [message.value for message in self.reader.poll(timeout_seconds=0.05)]
        self.prompts += [codec.decode(value) for value in values if value != b"garbage"]

    def wait_for(self, count: int) -> None:
        """Wait for exactly `count` prompts in all, and see that no more follow."""
        wait_until(lambda: self.poll() or len(self.prompts) >= count, f"{count} prompts", DEADLINE_SECONDS)
        settled = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < settled:
            self.poll()
        assert len(self.prompts) == count


class RunningProducer:
    """A producer in a thread of its own."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._stop = Stop()
        self._settings = settings
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(DEADLINE_SECONDS)
        assert not self.runs

    def stop(self) -> None:
        self._stop.ask()
        self.wait()

    def _run(self) -> None:
        settings = self._settings
        try:
            if settings.source == "states":
                run_states(settings, self._stop, health=Health())
                return
            with opened_source(settings) as source:
                Producer(settings, source, sampling=sampling_of(settings), health=Health()).run(self._stop)
        except RollstreamError as error:
            self.error = error


@contextmanager
def producing(settings: ProducerSettings) -> Iterator[RunningProducer]:
    """The producer during the block; it must have ended well, by itself or when asked."""
    producer = RunningProducer(settings)
    try:
        yield producer
    finally:
        producer.stop()
    assert producer.error is None
