"""A member of a consumer group on a real broker, without a stage: how many records it hands out, and when."""

import asyncio
from contextlib import closing
from typing import Literal

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client import REGISTRY

from rollstream.bus import topic_watch
from rollstream.bus.admin import CommittedOffsets, KafkaAdmin
from rollstream.bus.commit_notes import marks_in
from rollstream.bus.consumer import GroupConsumer
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.in_flight import InFlight
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.offsets import Commit
from rollstream.bus.publisher import Publisher
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import TopicChangedError
from rollstream.schemas.topics import PROMPTS
from tests.harness.topics import add_partitions, make_anew
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


def test_marks_of_records_in_work_are_committed_and_leave_with_them(kafka: str, topic_prefix: str) -> None:
    settings, topic, group = KafkaSettings(bootstrap_servers=kafka), PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put_records(settings, topic)

    async def scenario() -> None:
        bounds = ConsumerSettings(max_in_flight=3, commit_interval_seconds=0.1)
        consumer = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await consumer.start(weigh=lambda _: 1, on_dropped=lambda: None)
        taken: list[InFlight] = []
        async for one in consumer.records():
            taken.append(one)
            if len(taken) == 3:
                break
        shape = KafkaAdmin(settings).shape(topic)
        with closing(CommittedOffsets(settings, group)) as committed:

            def marks() -> dict[int, int]:
                return marks_in(committed.commits(topic, shape).get(0, Commit(0)).note)

            for one, mark in zip(taken, (8, 7, 8), strict=True):
                one.mark(mark)
            await until(lambda: marks() == {0: 8, 1: 7, 2: 8}, "the marks")
            taken[1].done()
            await until(lambda: marks() == {0: 8, 2: 8}, "the others' marks")
            assert committed.of(topic, shape) == {0: 0}
        await consumer.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))


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


async def handled(consumer: GroupConsumer, number: int) -> None:
    """Take so many records, and finish all of them at the end."""
    unfinished: list[InFlight] = []
    async for taken in consumer.records():
        unfinished.append(taken)
        if len(unfinished) == number:
            break
    for each in unfinished:
        each.done()


async def drained(consumer: GroupConsumer) -> None:
    async for taken in consumer.records():
        taken.done()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_is_made_anew_ends_a_member_and_the_next_one_reads_all_of_the_new_one(
    protocol: Literal["classic", "consumer"], kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "_LOOK_EVERY_SECONDS", 5.0)
    settings = KafkaSettings(bootstrap_servers=kafka, group_protocol=protocol)
    topic, group = PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)

    def a_member() -> GroupConsumer:
        bounds = ConsumerSettings(max_in_flight=NUM_RECORDS, commit_interval_seconds=0.2)
        return GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())

    async def scenario() -> None:
        old = a_member()
        await old.start(weigh=lambda _: 1, on_dropped=lambda: None)
        await asyncio.to_thread(put_records, settings, topic)
        taken = asyncio.create_task(handled(old, NUM_RECORDS))
        await taken
        await asyncio.to_thread(make_anew, settings, topic)
        await asyncio.to_thread(put_records, settings, topic)
        with pytest.raises(TopicChangedError):
            await drained(old)
        with pytest.raises(TopicChangedError):
            await old.close()
        new = a_member()
        await new.start(weigh=lambda _: 1, on_dropped=lambda: None)
        await handled(new, NUM_RECORDS)
        await new.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))
    assert KafkaAdmin(settings).committed_offsets(group, topic) == {0: NUM_RECORDS}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_reads_partitions_that_are_added_within_a_minute(
    protocol: Literal["classic", "consumer"], kafka: str, topic_prefix: str
) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka, group_protocol=protocol)
    topic, group = PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)

    async def scenario() -> None:
        bounds = ConsumerSettings(max_in_flight=NUM_RECORDS)
        member = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await member.start(weigh=lambda _: 1, on_dropped=lambda: None)
        await asyncio.to_thread(put_records, settings, topic)
        await handled(member, NUM_RECORDS)
        await asyncio.to_thread(add_partitions, settings, topic, 4)
        await asyncio.to_thread(put_records, settings, topic)
        await asyncio.wait_for(handled(member, NUM_RECORDS), 60)
        await member.close()

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE_SECONDS))
    committed = KafkaAdmin(settings).committed_offsets(group, topic)
    assert (len(committed), sum(committed.values())) == (4, 2 * NUM_RECORDS)


def test_a_commit_of_a_topic_before_does_not_count(kafka: str, topic_prefix: str) -> None:
    settings, topic, group = KafkaSettings(bootstrap_servers=kafka), PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put_records(settings, topic)
    config = {**settings.client_config(), "group.id": group}
    with Consumer(config) as late:
        late.commit(offsets=[TopicPartition(topic, 0, NUM_RECORDS, metadata="of another topic")], asynchronous=False)

    async def scenario() -> None:
        bounds = ConsumerSettings(max_in_flight=NUM_RECORDS)
        member = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await member.start(weigh=lambda _: 1, on_dropped=lambda: None)
        await handled(member, NUM_RECORDS)
        await member.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))


def test_what_a_callback_raises_ends_the_member_and_nothing_is_committed(kafka: str, topic_prefix: str) -> None:
    settings, topic, group = KafkaSettings(bootstrap_servers=kafka), PROMPTS.of(topic_prefix), f"{topic_prefix}.group"
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put_records(settings, topic)

    def fail(_: KafkaMessage) -> int:
        raise KeyboardInterrupt("in a callback of the event loop")

    async def scenario() -> None:
        bounds = ConsumerSettings()
        consumer = GroupConsumer(settings, group_id=group, topics=[topic], settings=bounds, health=Health())
        await consumer.start(weigh=fail, on_dropped=lambda: None)
        with pytest.raises(KeyboardInterrupt, match="in a callback"):
            await drained(consumer)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))
    assert KafkaAdmin(settings).committed_offsets(group, topic) == {}
