"""A member of a consumer group on a real broker, without a stage: how many records it hands out, and when."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

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

T = TypeVar("T")

NUM_RECORDS = 300
BOUND = 4


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic, the settings with which a group reads it, and the group."""

    settings: KafkaSettings
    name: str
    group: str

    def put(self) -> None:
        """So many records more."""
        with Publisher(self.settings, client_id="test") as publisher:
            deliveries = Deliveries()
            for number in range(NUM_RECORDS):
                publisher.send_blocking(OutRecord(topic=self.name, key=str(number).encode(), value=b"x"), deliveries)
            deliveries.wait()

    async def member(self, weigh: Callable[[KafkaMessage], int] = lambda _: 1, **bounds: float) -> GroupConsumer:
        """A member of the group, started."""
        settings = ConsumerSettings(**{"max_in_flight": NUM_RECORDS, **bounds})
        member = GroupConsumer(
            self.settings, group_id=self.group, topics=[self.name], settings=settings, health=Health()
        )
        await member.start(weigh=weigh, on_dropped=lambda: None)
        return member

    def committed(self) -> dict[int, int]:
        return KafkaAdmin(self.settings).committed_offsets(self.group, self.name)


@pytest.fixture(params=["consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(kafka: str, topic_prefix: str, protocol: Literal["classic", "consumer"]) -> Topic:
    """A topic of one partition, with nothing in it."""
    settings = KafkaSettings(bootstrap_servers=kafka, group_protocol=protocol)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    return Topic(settings=settings, name=PROMPTS.of(topic_prefix), group=f"{topic_prefix}.group")


both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)


def wait_for(scenario: Coroutine[Any, Any, T], seconds: float = DEADLINE_SECONDS) -> T:
    return asyncio.run(asyncio.wait_for(scenario, seconds))


@pytest.mark.parametrize("held", [1, 3, BOUND])
def test_all_records_come_and_are_committed_however_many_are_held_within_the_bound(topic: Topic, held: int) -> None:
    add_partitions(topic.settings, topic.name, 2)
    topic.put()

    async def scenario() -> set[tuple[int, int]]:
        member = await topic.member(max_in_flight=BOUND)
        places: list[tuple[int, int]] = []
        unfinished: list[InFlight] = []
        async for taken in member.records():
            places.append((taken.message.partition, taken.message.offset))
            unfinished.append(taken)
            assert len(unfinished) <= member.num_in_flight <= BOUND
            while len(unfinished) >= held or (unfinished and len(places) == NUM_RECORDS):
                unfinished.pop().done()
            if len(places) == NUM_RECORDS:
                break
        await member.close()
        assert len(places) == NUM_RECORDS
        return set(places)

    assert len(wait_for(scenario())) == NUM_RECORDS
    assert sum(topic.committed().values()) == NUM_RECORDS


def test_marks_of_records_in_work_are_committed_and_leave_with_them(topic: Topic) -> None:
    topic.put()

    async def scenario() -> None:
        member = await topic.member(max_in_flight=3, commit_interval_seconds=0.1)
        taken: list[InFlight] = []
        async for one in member.records():
            taken.append(one)
            if len(taken) == 3:
                break
        shape = KafkaAdmin(topic.settings).shape(topic.name)
        with closing(CommittedOffsets(topic.settings, topic.group)) as committed:

            def marks() -> dict[int, int]:
                return marks_in(committed.commits(topic.name, shape).get(0, Commit(0)).note)

            for one, mark in zip(taken, (8, 7, 8), strict=True):
                one.mark(mark)
            await until(lambda: marks() == {0: 8, 1: 7, 2: 8}, "the marks")
            taken[1].done()
            await until(lambda: marks() == {0: 8, 2: 8}, "the others' marks")
            assert committed.of(topic.name, shape) == {0: 0}
        await member.close()

    wait_for(scenario())


def test_a_full_backlog_is_exported_until_it_has_room_again(topic: Topic) -> None:
    topic.put()

    def paused() -> float | None:
        return REGISTRY.get_sample_value("rollstream_bus_paused_ratio", {"group": topic.group})

    async def scenario() -> None:
        member = await topic.member(max_in_flight=BOUND)
        try:
            assert paused() == 0
            await until(lambda: paused() == 1, "a full backlog to be exported")
            await handled(member, NUM_RECORDS, at_once=True)
            await until(lambda: paused() == 0, "room to be exported")
        finally:
            await member.close()

    wait_for(scenario(), 2 * DEADLINE_SECONDS)


async def handled(member: GroupConsumer, number: int, *, at_once: bool = False) -> None:
    """Take so many records, and finish each at once or all of them at the end."""
    taken: list[InFlight] = []
    async for one in member.records():
        taken.append(one)
        if at_once:
            one.done()
        if len(taken) == number:
            break
    for one in () if at_once else taken:
        one.done()


async def drained(member: GroupConsumer) -> None:
    async for taken in member.records():
        taken.done()


@both_protocols
def test_a_topic_that_is_made_anew_ends_a_member_and_the_next_one_reads_all_of_the_new_one(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "_LOOK_EVERY_SECONDS", 1.0)

    async def scenario() -> None:
        old = await topic.member(commit_interval_seconds=0.2)
        await asyncio.to_thread(topic.put)
        await asyncio.create_task(handled(old, NUM_RECORDS))
        await asyncio.to_thread(make_anew, topic.settings, topic.name)
        await asyncio.to_thread(topic.put)
        with pytest.raises(TopicChangedError):
            await drained(old)
        with pytest.raises(TopicChangedError):
            await old.close()
        new = await topic.member(commit_interval_seconds=0.2)
        await handled(new, NUM_RECORDS)
        await new.close()

    wait_for(scenario())
    assert topic.committed() == {0: NUM_RECORDS}


@both_protocols
def test_a_member_reads_partitions_that_are_added_within_a_minute(topic: Topic) -> None:
    async def scenario() -> None:
        member = await topic.member()
        await asyncio.to_thread(topic.put)
        await handled(member, NUM_RECORDS)
        await asyncio.to_thread(add_partitions, topic.settings, topic.name, 4)
        await asyncio.to_thread(topic.put)
        await asyncio.wait_for(handled(member, NUM_RECORDS), 60)
        await member.close()

    wait_for(scenario(), 2 * DEADLINE_SECONDS)
    assert (len(topic.committed()), sum(topic.committed().values())) == (4, 2 * NUM_RECORDS)


def test_a_commit_of_a_topic_before_does_not_count(topic: Topic) -> None:
    topic.put()
    place = TopicPartition(topic.name, 0, NUM_RECORDS, metadata="of another topic")
    with Consumer({**topic.settings.client_config(), "group.id": topic.group}) as late:
        late.commit(offsets=[place], asynchronous=False)

    async def scenario() -> None:
        member = await topic.member()
        await handled(member, NUM_RECORDS)
        await member.close()

    wait_for(scenario())


def test_what_a_callback_raises_ends_the_member_and_nothing_is_committed(topic: Topic) -> None:
    topic.put()

    def fail(_: KafkaMessage) -> int:
        raise KeyboardInterrupt("in a callback of the event loop")

    async def scenario() -> None:
        member = await topic.member(fail)
        with pytest.raises(KeyboardInterrupt, match="in a callback"):
            await drained(member)

    wait_for(scenario())
    assert topic.committed() == {}
