"""Records that would end a stage, each time that it starts: it ends them, and its partition moves on."""

import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.publisher import Publisher
from rollstream.generator.handler import without_tokens
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import RegistryError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.registry_url import ConfluentRegistry
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import MAX_RECORD_BYTES, PROMPTS, ROLLOUTS, SCORED
from rollstream.stage.dead_letters import KEPT_BYTES
from rollstream.stage.loop import MAX_FAILURES_A_MINUTE
from rollstream.stage.replay import list_dead_letters
from rollstream.stage.starts import ALONE_AFTER
from tests.harness.builders import a_generated, a_prompt, a_turn
from tests.harness.odd_headers import put_with_odd_header
from tests.harness.running import run_on
from tests.harness.small_registry import SmallRegistry, a_small_registry
from tests.harness.stage_runs import Bus, run, running
from tests.harness.waits import until


@pytest.fixture
def bus(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Bus]:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    publisher = Publisher(settings, client_id="test")
    yield Bus(settings, topic_prefix, publisher, tmp_path)
    publisher.close()


def test_what_is_small_only_when_compressed_ends_as_the_beginning_of_a_dead_letter(bus: Bus) -> None:
    zeros = bytes(20_000_000)

    bus.put_compressed(zeros)
    bus.submit([1])
    bus.handle(2)
    (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
    assert (letter.value, letter.cut_from_bytes) == (zeros[:KEPT_BYTES], len(zeros))
    assert bus.rows() == Counter({1: 4})


def test_a_registry_outage_while_records_are_weighed_loses_none(bus: Bus) -> None:
    async def outage(registry: SmallRegistry, values: list[bytes]) -> None:
        stage = bus.stage(weight=lambda prompt: prompt.group_size, registry_url=registry.url)
        async with running(stage) as task:
            await until(lambda: stage.health.readiness()["assignment"].is_ok, "an assignment", task=task)
            registry.is_down = True
            bus.put(*values)
            await until(lambda: False, "the stage to end", task=task)

    async def repaired(registry: SmallRegistry) -> None:
        async with running(bus.stage(registry_url=registry.url)) as task:
            await until(lambda: bus.committed() == 3, "every prompt to be committed", task=task)

    with a_small_registry() as registry, closing(ConfluentRegistry(registry.url, run=bus.run)) as client:
        client.register()
        codec = AvroCodec(PROMPTS, client)
        with pytest.raises(RegistryError, match="HTTP 503"):
            run(outage(registry, [codec.encode(a_prompt(row)) for row in range(3)]))
        assert bus.committed() == 0
        registry.is_down = False
        run(repaired(registry))
    assert len({message.key for message in bus.read(ROLLOUTS)}) == 3


def test_what_cannot_even_say_that_it_failed_becomes_a_dead_letter(bus: Bus) -> None:
    def too_large(prompt: PromptSubmitted) -> RolloutGenerated:
        huge = prompt.model_copy(update={"metadata": {"blob": "x" * MAX_RECORD_BYTES}})
        return a_generated(prompt=huge)

    async def huge(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        yield too_large(prompt)

    bus.submit(range(MAX_FAILURES_A_MINUTE + 5))
    stage = bus.stage(huge, on_failure=lambda prompt, *_: [too_large(prompt)], if_too_large=lambda sample, _: sample)
    bus.handle(MAX_FAILURES_A_MINUTE + 5, stage)
    letters = list_dead_letters(run_on(bus.kafka, bus.run))
    assert len(letters) == MAX_FAILURES_A_MINUTE + 5
    assert {letter.error_class for letter in letters} == {"RecordTooLargeError"}


def test_a_completed_sample_too_large_for_its_topic_ends_as_failed_and_the_largest_records_are_taken(bus: Bus) -> None:
    async def long(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        yield a_generated(0, prompt=prompt, turns=(a_turn(text="x" * MAX_RECORD_BYTES),))
        yield a_generated(1, prompt=prompt)

    bus.submit([1])
    bus.handle(1, bus.stage(long, if_too_large=without_tokens))
    ends = {sample.sample_index: (sample.status, len(sample.turns)) for sample in bus.samples()}
    assert ends == {0: (Status.FAILED, 0), 1: (Status.COMPLETED, 1)}
    for topic in (PROMPTS, ROLLOUTS, SCORED):
        # Not compressible: the broker bounds the compressed size.
        bus.put(random.Random(0).randbytes(topic.max_bytes), topic=topic)


def test_what_the_client_cannot_decompress_ends_as_a_dead_letter_and_readers_go_on(bus: Bus) -> None:
    bus.submit([1])
    bus.put_compressed(bytes(150_000_000))
    bus.submit([2])
    bus.handle(3)
    assert bus.rows() == Counter({1: 4, 2: 4})
    (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
    assert (letter.value, letter.identity.offset) == (None, 1)
    assert "Decompression" in letter.error_message
    assert [message.offset for message in bus.read(PROMPTS)] == [0, 1, 2]


def test_a_header_whose_name_is_not_utf_8_changes_nothing(bus: Bus) -> None:
    put_with_odd_header(bus.kafka.bootstrap_servers, PROMPTS.of(bus.run), AvroCodec(PROMPTS).encode(a_prompt(1)))

    bus.submit([2])
    bus.handle(2)
    assert bus.rows() == Counter({1: 4, 2: 4})
    assert [message.headers for message in bus.read(PROMPTS)] == [(), ()]


def test_what_a_record_waits_before_it_runs_alone_does_not_count_against_its_bound(bus: Bus, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"{{{bus.run}.generators}}:starts:{PROMPTS.of(bus.run)}:0:1", ALONE_AFTER)

    bus.submit([1, 2], "sleep 1.3")
    bus.submit([3])
    stage = bus.stage(redis_url=redis_url, bounds={"record_deadline_seconds": 2.0})
    bus.handle(3, stage)
    assert bus.rows() == Counter({1: 4, 2: 4, 3: 4})
