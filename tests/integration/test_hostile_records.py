"""Records that would end a stage, each time that it starts: it ends them, and its partition moves on."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.publisher import Publisher
from rollstream.process.settings import KafkaSettings
from rollstream.stage.dead_letters import KEPT_BYTES, list_dead_letters
from tests.harness.running import run_on
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

    async def scenario() -> None:
        bus.put_compressed(zeros)
        bus.submit([1])
        async with running(bus.stage()) as task:
            await until(lambda: bus.committed() == 2, "both to be committed", task=task)

    run(scenario())
    (letter,) = list_dead_letters(run_on(bus.kafka, bus.run))
    assert (letter.value, letter.cut_from_bytes) == (zeros[:KEPT_BYTES], len(zeros))
    assert bus.rows() == Counter({1: 4})
