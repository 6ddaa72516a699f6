"""`python -m tests.bench bus`: our publisher and consumer against the Kafka client alone, on the same broker."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import click
import confluent_kafka
import numpy as np
from confluent_kafka.admin import NewTopic

from rollstream.bus.clients import admin_client
from rollstream.bus.consumer import GroupConsumer
from rollstream.bus.deliveries import Deliveries
from rollstream.bus.group_config import ConsumerSettings, group_config
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher, producer_config
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError
from tests.bench.pairs import a_broker, compared, count_option, in_turn, tell

_TARGET: Final = 0.8
_PARTITIONS: Final = 4
_DEADLINE_SECONDS: Final = 120.0
_CONSUMER: Final = ConsumerSettings()
Side = Callable[[KafkaSettings, "Load", str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`num_records` records of `record_bytes` each."""

    record_bytes: int
    num_records: int

    def value(self) -> bytes:
        """Little-endian token ids, which can be compressed about as much as real records."""
        rng = np.random.default_rng(0)
        return rng.integers(0, 4096, self.record_bytes // 4, dtype=np.int32).tobytes()


@click.command("bus")
@count_option("--rounds", 5, 1, "Pairs of runs, in turn.")
@count_option("--megabytes", 120, 1, "Size of all records of a run.")
def command(rounds: int, megabytes: int) -> None:
    """Records a second of our publisher and consumer ÷ those of the Kafka client alone, at 130 kB and 2 kB.

    The ratio of a case is the median of its pairs; the smallest of the cases counts. Target: 0.8.
    """
    loads = [Load(record_bytes=size, num_records=max(1, megabytes * 1_000_000 // size)) for size in (130_000, 2_000)]
    with a_broker() as (kafka, _):
        cases = [
            {**asdict(load), **case}
            for load in loads
            for case in (
                _case(kafka, load, rounds, "publish", ours=_publish_ours, bare=_publish_bare),
                _case(kafka, load, rounds, "consume", ours=_consume_ours, bare=_consume_bare),
            )
        ]
    settings = {"rounds": rounds, "partitions": _PARTITIONS, "brokers": 1, "acks": "all", "idempotent": True}
    tell("bus", {"ratio": min(case["ratio"] for case in cases), "target": _TARGET, "cases": cases}, settings)


def _case(kafka: KafkaSettings, load: Load, rounds: int, what: str, *, ours: Side, bare: Side) -> dict[str, Any]:
    topic = _new_topic(kafka)
    # Not measured: it warms the broker up, and fills the topic for the consumers.
    _publish_bare(kafka, load, topic)

    def speed(side: Side) -> float:
        return load.num_records / side(kafka, load, topic if what == "consume" else _new_topic(kafka))

    pairs = in_turn({"ours": partial(speed, ours), "bare": partial(speed, bare)}, rounds)
    return {
        "what": what,
        **compared([pair["ours"] / pair["bare"] for pair in pairs]),
        "ours_records_per_second": round(median(pair["ours"] for pair in pairs), 1),
        "bare_records_per_second": round(median(pair["bare"] for pair in pairs), 1),
    }


def _new_topic(kafka: KafkaSettings) -> str:
    name = f"bench-bus-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(name, num_partitions=_PARTITIONS, replication_factor=1)
    with admin_client(kafka) as admin:
        admin.create_topics([topic])[name].result(30)
    return name


def _publish_ours(kafka: KafkaSettings, load: Load, topic: str) -> float:
    return asyncio.run(asyncio.wait_for(_publish_with_ours(kafka, load, topic), _DEADLINE_SECONDS))


async def _publish_with_ours(kafka: KafkaSettings, load: Load, topic: str) -> float:
    """As the stages publish."""
    value = load.value()
    async with Publisher(kafka, client_id="bench-ours") as publisher:
        deliveries = Deliveries()
        started = time.perf_counter()
        for number in range(load.num_records):
            await publisher.send(OutRecord(topic=topic, key=str(number).encode(), value=value), deliveries)
        await deliveries.confirmed()
        return time.perf_counter() - started


def _publish_bare(kafka: KafkaSettings, load: Load, topic: str) -> float:
    producer = confluent_kafka.Producer(producer_config(kafka, "bench-bare"))
    value = load.value()
    undelivered = load.num_records

    def report(error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
        nonlocal undelivered
        undelivered -= error is None

    started = time.perf_counter()
    for number in range(load.num_records):
        while True:
            try:
                producer.produce(topic, value=value, key=str(number).encode(), on_delivery=report)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush(_DEADLINE_SECONDS)
    if undelivered:
        raise BrokerError(f"{undelivered} records were not delivered within {_DEADLINE_SECONDS} s")
    return time.perf_counter() - started


def _consume_ours(kafka: KafkaSettings, load: Load, topic: str) -> float:
    return asyncio.run(asyncio.wait_for(_consume_with_ours(kafka, load, topic), _DEADLINE_SECONDS))


async def _consume_with_ours(kafka: KafkaSettings, load: Load, topic: str) -> float:
    consumer = GroupConsumer(
        kafka, group_id=f"ours-{uuid.uuid4().hex[:8]}", topics=[topic], settings=_CONSUMER, health=Health()
    )
    await consumer.start(weigh=lambda _: 1, on_dropped=lambda: None)
    clock = _Clock(load.num_records)
    try:
        async for record in consumer.records():
            record.done()
            if clock.is_over(1):
                break
        return clock.seconds
    finally:
        await consumer.close()


def _consume_bare(kafka: KafkaSettings, load: Load, topic: str) -> float:
    """The faster of two ways to read with the client: message by message, or in batches."""
    return min(_consume_bare_by(kafka, load, topic, batch) for batch in (1, 200))


def _consume_bare_by(kafka: KafkaSettings, load: Load, topic: str, batch: int) -> float:
    group = f"bare-{uuid.uuid4().hex[:8]}"
    consumer = confluent_kafka.Consumer(group_config(kafka, group, _CONSUMER.max_poll_interval_seconds))
    consumer.subscribe([topic])
    deadline = time.monotonic() + _DEADLINE_SECONDS
    clock = _Clock(load.num_records)
    next_commit = time.monotonic() + _CONSUMER.commit_interval_seconds
    is_over = False
    while not is_over:
        first = consumer.poll(0.1)
        messages = [] if first is None else [first, *(consumer.consume(batch - 1, 0.0) if batch > 1 else ())]
        is_over = clock.is_over(sum(message.error() is None and len(message.value()) > 0 for message in messages))
        if clock.num_taken and time.monotonic() > next_commit:
            consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=True)
            next_commit = time.monotonic() + _CONSUMER.commit_interval_seconds
        if time.monotonic() > deadline:
            raise BrokerError(f"{clock.num_taken} of {load.num_records} records came within {_DEADLINE_SECONDS} s")
    consumer.close()
    return clock.seconds


class _Clock:
    """The time of the last three quarters of the records, scaled to all of them.

    So the time to join the group does not count, and neither do records that were fetched meanwhile.
    """

    def __init__(self, num_records: int) -> None:
        self.num_taken = 0
        self.seconds = 0.0
        self._num_records = num_records
        self._began = (time.perf_counter(), 0)

    def is_over(self, num_new: int) -> bool:
        """Count `num_new` more records; whether these were the last."""
        self.num_taken += num_new
        if not self._began[1] and self._num_records <= self.num_taken * 4 < 4 * self._num_records:
            self._began = (time.perf_counter(), self.num_taken)
        if self.num_taken < self._num_records:
            return False
        began, before = self._began
        self.seconds = (time.perf_counter() - began) * self._num_records / (self._num_records - before)
        return True
