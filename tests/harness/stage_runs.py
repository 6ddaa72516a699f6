"""Runs the echo stage in this process or in its own, and reads and writes its topics as an outside client does."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.stop import Stop
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import PROMPTS, ROLLOUTS, Topic
from rollstream.stage.loop import Stage
from tests.harness import echo_stage
from tests.harness.builders import a_prompt
from tests.harness.echo_stage import build_stage, run_built
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.waits import DEADLINE_SECONDS, until


@dataclass(frozen=True)
class Bus:
    """One run's topics on the test broker, as an outside client sees them."""

    kafka: KafkaSettings
    run: str
    publisher: Publisher
    directory: Path

    def put(self, *values: bytes | None, topic: Topic[Any] = PROMPTS) -> None:
        for value in values:
            self.publisher.publish_soon(OutRecord(topic=topic.of(self.run), value=value)).result(10)

    def put_compressed(self, *values: bytes, topic: Topic[Any] = PROMPTS) -> None:
        """Values that are too large for our own clients, and small when compressed: the broker takes them."""
        config = {**self.kafka.client_config(), "message.max.bytes": 10**9, "compression.type": "zstd"}
        producer = confluent_kafka.Producer(config)
        for value in values:
            producer.produce(topic.of(self.run), value=value, key=b"k")
            assert producer.flush(30) == 0

    def submit(self, rows: Iterable[int], order: str = "", *, topic: Topic[Any] = PROMPTS) -> None:
        codec: AvroCodec[PromptSubmitted] = AvroCodec(topic)
        self.put(*(codec.encode(a_prompt(row, metadata={"order": order})) for row in rows), topic=topic)

    def samples(self, topic: Topic[Any] = ROLLOUTS) -> list[RolloutGenerated]:
        codec: AvroCodec[RolloutGenerated] = AvroCodec(topic)
        return [codec.decode(message.value) for message in self.read(topic)]

    def read(self, topic: Topic[Any]) -> list[KafkaMessage]:
        with TopicReader(self.kafka, [topic.of(self.run)]) as reader:
            return list(reader.to_end())

    def rows(self, topic: Topic[Any] = ROLLOUTS) -> Counter[int]:
        """Samples published of each prompt."""
        return Counter(sample.prompt.source.row for sample in self.samples(topic))

    def committed(self, topic: Topic[Any] = PROMPTS) -> int:
        """Sum over the partitions."""
        return sum(KafkaAdmin(self.kafka).committed_offsets(f"{self.run}.generators", topic.of(self.run)).values())

    def stage(self, *arguments: Any, **options: Any) -> Stage:
        return build_stage(self.kafka, self.run, *arguments, **options)

    def handle(self, num_records: int, stage: Stage | None = None) -> None:
        """Run a stage until so many records of `prompts` are committed."""

        async def scenario() -> None:
            async with running(stage or self.stage()) as task:
                await until(lambda: self.committed() == num_records, f"{num_records} to be committed", task=task)

        run(scenario())


@asynccontextmanager
async def running(stage: Stage) -> AsyncGenerator[asyncio.Task[None], None]:
    """Run the stage during the block, then ask it to stop and wait; raises the error that ended it."""
    stop = Stop()
    task = asyncio.create_task(run_built(stage, stop))
    try:
        yield task
    finally:
        stop.ask()
        await task


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * DEADLINE_SECONDS))


@contextmanager
def process(bus: Bus, *, redis_url: str | None = None, **bounds: float) -> Iterator[StartedProcess]:
    """The stage as a process of its own."""
    main = partial(echo_stage.main, bus.kafka, bus.run, redis_url, bounds)
    started = start_forked(main, log=bus.directory / "stage.log")
    try:
        yield started
    finally:
        started.kill()
