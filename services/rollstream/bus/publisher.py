"""Publishes records: idempotent, confirmed by every in-sync replica, never dropped.

All records of a run are published here, except the commits of trainers and rollbacks (`transaction.py`).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final, Self

import confluent_kafka

from rollstream.bus.clients import CLIENT_LOG, know_brokers, made
from rollstream.bus.deliveries import DELIVERY_TIMEOUT_SECONDS, Deliveries, Report, promise
from rollstream.bus.message import Delivery, OutRecord
from rollstream.process.ending import end_process
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import TOPIC_BYTES

_LOG = logging.getLogger(__name__)

# The topic dead-letters takes 1 MiB more than the others, so that any record fits there with its headers.
MAX_MESSAGE_BYTES = TOPIC_BYTES + 2**20

# Below the time that `close` waits for the thread. Without a broker records wait in the client's queue instead.
_FIRST_ANSWER_SECONDS: Final = 1.0


def producer_config(kafka: KafkaSettings, client_id: str) -> dict[str, Any]:
    """librdkafka's settings for all our producers."""
    return {
        **kafka.client_config(),
        "client.id": client_id,
        "logger": CLIENT_LOG,
        # Off by default in librdkafka; without it a retry may duplicate and reorder records.
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "zstd",
        # Samples end one by one. With 5 ms the whole loop on two cores took 12 % more CPU than with 80 ms.
        "linger.ms": kafka.linger_seconds * 1000,
        # As Java and aiokafka clients choose: with all of them a key is in the same partition.
        "partitioner": "murmur2_random",
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.kbytes": 262144,
        "delivery.timeout.ms": int(DELIVERY_TIMEOUT_SECONDS * 1000),
    }


class Publisher:
    """Publishes records; thread-safe. A delivery that fails although it was retried raises `BrokerError`.

    As a context manager (`with` and `async with`) it waits at the end for outstanding deliveries.
    """

    def __init__(self, kafka: KafkaSettings, *, client_id: str) -> None:
        config = {**producer_config(kafka, client_id), "error_cb": self._on_error}
        self._producer = made(confluent_kafka.Producer, config, kafka)
        self._fatal: BrokerError | None = None
        self._knows_brokers = threading.Event()
        self._closing = threading.Event()
        # librdkafka calls delivery reports only inside `poll` and `flush`.
        self._poller = threading.Thread(target=self._poll, name=f"{client_id}-deliveries", daemon=True)
        self._poller.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def publish(self, record: OutRecord) -> Delivery:
        """Send one record and wait for its delivery report. Waits while the local queue is full."""
        future, report = promise()
        for pause in self._pauses(record, report):
            await asyncio.sleep(pause)
        return await asyncio.wrap_future(future)

    def publish_soon(self, record: OutRecord) -> Future[Delivery]:
        """The same for synchronous code. The future holds the delivery report."""
        future, report = promise()
        for pause in self._pauses(record, report):
            time.sleep(pause)
        return future

    async def send(self, record: OutRecord, deliveries: Deliveries) -> None:
        """Send one of many records, which `deliveries` waits for. Waits while the local queue is full."""
        for pause in self._pauses(record, deliveries.report):
            await asyncio.sleep(pause)
        deliveries.num_sent += 1

    def send_blocking(self, record: OutRecord, deliveries: Deliveries) -> None:
        """The same for synchronous code."""
        for pause in self._pauses(record, deliveries.report):
            time.sleep(pause)
        deliveries.num_sent += 1

    def require_alive(self) -> None:
        """Raise `BrokerError` if it will never deliver anything again."""
        if self._fatal:
            raise self._fatal

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Wait for outstanding deliveries; raises `BrokerError` if some are still out after the timeout."""
        left = self._producer.flush(timeout_seconds)
        self._closing.set()
        self._poller.join(timeout=2.0)
        if left:
            raise BrokerError(f"{left} records were not delivered within {timeout_seconds} s of closing")

    def _pauses(self, record: OutRecord, report: Report) -> Iterator[float]:
        """Hand the record to the client; each pause, in seconds, is to be waited for before the next try."""
        deadline = time.monotonic() + DELIVERY_TIMEOUT_SECONDS
        while not self._is_taken(record, report):
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"the queue to {record.topic} stayed full for {DELIVERY_TIMEOUT_SECONDS} s: is the broker up?"
                )
            yield 0.01

    def _is_taken(self, record: OutRecord, report: Report) -> bool:
        """Hand the record to the client; False while its queue is full, or it does not know the brokers yet."""
        self.require_alive()
        if not self._knows_brokers.is_set():
            return False
        try:
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                partition=-1 if record.partition is None else record.partition,
                headers=list(record.headers) or None,
                on_delivery=report,
            )
        except BufferError:
            return False
        except confluent_kafka.KafkaException as error:
            raise BrokerError(f"cannot produce to {record.topic}: {error}") from error
        return True

    def _poll(self) -> None:
        know_brokers(self._producer, timeout_seconds=_FIRST_ANSWER_SECONDS)
        self._knows_brokers.set()
        try:
            while not self._closing.is_set():
                self._producer.poll(0.1)
        except BaseException as error:  # noqa: BLE001 (whoever waits for a delivery report would wait for ever)
            end_process(error, "a delivery report could not be handed on")

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self._fatal = BrokerError(f"the producer is dead: {error.str()}")
        _LOG.warning("kafka producer: %s", error.str())
