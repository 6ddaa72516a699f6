"""Which records a stage takes while others are handled."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.publisher import Publisher
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated
from tests.harness.builders import a_generated
from tests.harness.stage_runs import Bus, run, running
from tests.harness.waits import until


def test_a_result_frees_its_part_of_the_room_while_the_others_of_its_record_are_made(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Each prompt weighs 4, and 1 when three of its samples have ended: four of them fill a room of 4."""
    cluster = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(cluster).create_topics(topic_prefix, partitions=2)
    released = asyncio.Event()

    async def last_one_waits(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
        for index in range(4):
            if index == 3:
                await released.wait()
            yield a_generated(index, prompt=prompt)

    async def scenario(bus: Bus) -> None:
        bus.submit(range(6))
        room = {"weight": lambda prompt: prompt.group_size, "freed": lambda _: 1, "bounds": {"max_weight": 4}}
        stage = bus.stage(last_one_waits, **room)
        async with running(stage) as task:
            await until(lambda: sum(bus.rows().values()) == 12, "three samples of four prompts", task=task)
            assert (stage.consumer.num_in_flight, len(bus.rows())) == (4, 4)
            released.set()
            await until(lambda: bus.committed() == 6, "all of it", task=task)
        assert bus.rows() == Counter(dict.fromkeys(range(6), 4))

    publisher = Publisher(cluster, client_id="test")
    try:
        run(scenario(Bus(cluster, topic_prefix, publisher, tmp_path)))
    finally:
        publisher.close()
