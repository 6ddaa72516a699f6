"""A member of a consumer group on a real broker, without a stage: how many records it hands out, and when."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.consumer import GroupConsumer, InFlight
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.process.health import Health
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.topics import PROMPTS
from tests.harness.waits import DEADLINE_SECONDS, until

NUM_RECORDS = 300
BOUND = 4


def put_records(settings: KafkaSettings, topic: str) -> None:
    with Publisher(settings, client_id="test") as publisher:
        deliveries = Deliveries()
        for number in range(NUM_RECORDS):
            publisher.send_blocking(OutRecord(topic=topic, key=str(number).encode(), value=b"x"), deliveries)
        deliveries.wait()


@pytest.mark.parametrize("held", [1, 3, BOUND])
def test_all_records_come_and_are_committed_however_many_are_held_within_the_bound(
    kafka: str, topic_prefix: str, held: int
) -> None:
    settings, topic, group = KafkaSettings(bootstrap_servers=kafka), PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    put_records(settings, topic)

    async def scenario() -> set[tuple[int, int]]:
        bounds = ConsumerSettings(max_in_flight=BOUND)
        consumer = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await consumer.start(weigh=lambda _: 1, on_dropped=lambda: None)
        places: list[tuple[int, int]] = []
        unfinished: list[InFlight] = []
        async for taken in consumer.records():
            places.append((taken.message.partition, taken.message.offset))
            unfinished.append(taken)
            assert len(unfinished) <= consumer.num_in_flight <= BOUND
            while len(unfinished) >= held or (unfinished and len(places) == NUM_RECORDS):
                unfinished.pop().done()
            if len(places) == NUM_RECORDS:
                break
        await consumer.close()
        assert len(places) == NUM_RECORDS
        return set(places)

    assert len(asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))) == NUM_RECORDS
    assert sum(KafkaAdmin(settings).committed_offsets(group, topic).values()) == NUM_RECORDS


def test_a_full_backlog_is_exported_until_it_has_room_again(kafka: str, topic_prefix: str) -> None:
    settings, topic, group = KafkaSettings(bootstrap_servers=kafka), PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    put_records(settings, topic)

    def paused() -> float | None:
        return REGISTRY.get_sample_value("rollstream_bus_paused_ratio", {"group": group})

    async def scenario() -> None:
        bounds = ConsumerSettings(max_in_flight=BOUND)
        consumer = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await consumer.start(weigh=lambda _: 1, on_dropped=lambda: None)
        try:
            assert paused() == 0
            await until(lambda: paused() == 1, "a full backlog to be exported")
            number = 0
            async for taken in consumer.records():
                taken.done()
                number += 1
                if number == NUM_RECORDS:
                    break
            await until(lambda: paused() == 0, "room to be exported")
        finally:
            await consumer.close()

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE_SECONDS))
