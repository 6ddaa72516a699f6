"""Publishing many records at once, on a real broker: one that fails, a full queue, a waiter that is cancelled."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import confluent_kafka
import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import LEDGER, PROMPTS, ROLLOUTS, TOPIC_BYTES
from tests.harness.waits import DEADLINE_SECONDS

# The client's queue holds 100,000 whose reports were not handed out.
MORE_THAN_FIT = 100_500


@pytest.fixture
def settings(kafka: str, topic_prefix: str) -> KafkaSettings:
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=2)
    return settings


@pytest.fixture
def publisher(settings: KafkaSettings) -> Iterator[Publisher]:
    with Publisher(settings, client_id="test") as publisher:
        yield publisher


async def by_a_task(publisher: Publisher, records: list[OutRecord]) -> Deliveries:
    deliveries = Deliveries()
    for record in records:
        await publisher.send(record, deliveries)
    await asyncio.wait_for(deliveries.confirmed(), DEADLINE_SECONDS)
    return deliveries


async def by_a_thread(publisher: Publisher, records: list[OutRecord]) -> Deliveries:
    deliveries = Deliveries()
    for record in records:
        publisher.send_blocking(record, deliveries)
    deliveries.wait()
    return deliveries


both_ways = pytest.mark.parametrize("published", [by_a_task, by_a_thread])
Published = Callable[[Publisher, list[OutRecord]], Coroutine[Any, Any, Deliveries]]


def num_stored(settings: KafkaSettings, topic: str) -> int:
    with TopicReader(settings, [topic]) as reader:
        return sum(1 for _ in reader.to_end())


@both_ways
def test_all_are_stored_once_the_wait_is_over_and_it_is_known_where_they_end(
    settings: KafkaSettings, publisher: Publisher, topic_prefix: str, published: Published
) -> None:
    topic = PROMPTS.of(topic_prefix)
    records = [OutRecord(topic=topic, key=str(number).encode(), value=b"x") for number in range(300)]
    deliveries = asyncio.run(published(publisher, records))
    assert (deliveries.num_sent, sum(deliveries.ends.values())) == (300, 300)
    assert set(deliveries.ends) == {(topic, 0), (topic, 1)}
    assert num_stored(settings, topic) == 300


@both_ways
def test_none_at_all_are_confirmed_at_once(publisher: Publisher, published: Published) -> None:
    assert asyncio.run(published(publisher, [])).ends == {}


@both_ways
def test_one_record_that_the_broker_refuses_fails_the_batch_and_no_later_one(
    settings: KafkaSettings, publisher: Publisher, topic_prefix: str, published: Published
) -> None:
    good = OutRecord(topic=PROMPTS.of(topic_prefix), value=b"x")
    refused = OutRecord(topic=ROLLOUTS.of(topic_prefix), value=os.urandom(TOPIC_BYTES + 1000))
    with pytest.raises(BrokerError, match=rf"delivery to {refused.topic} failed: .*MSG_SIZE_TOO_LARGE"):
        asyncio.run(published(publisher, [good, refused, good]))
    assert asyncio.run(published(publisher, [good])).num_sent == 1
    assert num_stored(settings, good.topic) == 3


class _HeldBack(Deliveries):
    """Its reports wait for `released`, and so do all that come later."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def report(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert self.released.wait(DEADLINE_SECONDS)
        super().report(error, message)


def test_a_full_queue_is_waited_for_and_nothing_is_lost(publisher: Publisher, topic_prefix: str) -> None:
    async def release(deliveries: _HeldBack) -> None:
        deliveries.released.set()

    async def scenario() -> Deliveries:
        record = OutRecord(topic=PROMPTS.of(topic_prefix), value=b"x")
        deliveries = _HeldBack()
        releasing = asyncio.create_task(release(deliveries))
        for _ in range(MORE_THAN_FIT):
            await publisher.send(record, deliveries)
        # Nothing but a full queue suspends a task that sends, and only then another one runs.
        assert releasing.done()
        await asyncio.wait_for(deliveries.confirmed(), DEADLINE_SECONDS)
        return deliveries

    deliveries = asyncio.run(scenario())
    assert deliveries.num_sent == sum(deliveries.ends.values()) == MORE_THAN_FIT


def test_a_waiter_that_is_cancelled_while_records_are_out_harms_nobody(
    settings: KafkaSettings, publisher: Publisher, topic_prefix: str
) -> None:
    record = OutRecord(topic=PROMPTS.of(topic_prefix), value=b"x")

    async def scenario() -> None:
        abandoned = Deliveries()
        for _ in range(50):
            await publisher.send(record, abandoned)
        waiting = asyncio.create_task(abandoned.confirmed())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await by_a_task(publisher, [record])

    asyncio.run(scenario())
    assert num_stored(settings, record.topic) == 51


_RAISING = """
import sys
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.process.settings.base import KafkaSettings

class Raising(Deliveries):
    def report(self, error, message):
        raise ZeroDivisionError("in a delivery report")

publisher = Publisher(KafkaSettings(bootstrap_servers=sys.argv[1]), client_id="test")
deliveries = Raising()
publisher.send_blocking(OutRecord(topic=sys.argv[2], value=b"x"), deliveries)
deliveries.wait()
"""


def test_what_a_delivery_report_raises_ends_the_process(settings: KafkaSettings, topic_prefix: str) -> None:
    command = [sys.executable, "-c", _RAISING, settings.bootstrap_servers, ROLLOUTS.of(topic_prefix)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 70, done.stderr
    assert "ZeroDivisionError: in a delivery report; a delivery report could not be handed on" in done.stderr


def test_what_a_transaction_delivered_carries_the_time_at_which_the_broker_appended_it(
    settings: KafkaSettings, topic_prefix: str
) -> None:
    topic = LEDGER.of(topic_prefix)
    publisher = TransactionalPublisher(settings, f"{topic_prefix}.trainer")
    publisher.init()
    delivered = publisher.commit([OutRecord(topic=topic, value=b"a"), OutRecord(topic=topic, value=b"b")])
    with TopicReader(settings, [topic]) as reader:
        stored = [(message.offset, message.timestamp_ms) for message in reader.to_end()]
    assert [(one.offset, one.timestamp_ms) for one in delivered] == stored
    assert min(timestamp_ms for _, timestamp_ms in stored) > 0
