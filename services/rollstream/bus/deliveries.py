"""What becomes of published records: how their delivery reports reach the thread or task that sent them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Final

import confluent_kafka

from rollstream.bus.message import Delivery, Partition
from rollstream.schemas.errors import BrokerError

Report = Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None]
"""Called with what became of one record. It must not raise: that would end the thread that hands the reports out."""

DELIVERY_TIMEOUT_SECONDS: Final = 120.0
"""A record that is not delivered by then has failed."""
_LATEST_REPORT_SECONDS: Final = DELIVERY_TIMEOUT_SECONDS + 30.0


class Deliveries:
    """Counts the delivery reports of many records. It costs much less than a future for each of them.

    One thread sends (`Publisher.send`, `Publisher.send_blocking`), then it waits once, for all of them together.
    """

    def __init__(self) -> None:
        self.num_sent = 0
        self.ends: dict[Partition, int] = {}
        """The offset after the last record, for each partition that got some. Whole once the wait is over."""
        # Below 0 until the wait begins, so it can't be 0 while records are still being sent.
        self._num_out = 0
        self._lock = threading.Lock()
        self._all: Future[None] = Future()

    async def confirmed(self) -> None:
        """Wait until all are delivered. Raises the first error, while others may still be out."""
        self._count(self.num_sent)
        await asyncio.wrap_future(self._all)

    def wait(self) -> None:
        """The same for synchronous code."""
        self._count(self.num_sent)
        try:
            self._all.result(_LATEST_REPORT_SECONDS)
        except TimeoutError as error:
            raise BrokerError(f"a delivery report did not come within {_LATEST_REPORT_SECONDS} s") from error

    def report(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        """A `Report`."""
        if error is None:
            self.ends[message.topic(), message.partition()] = message.offset() + 1
        else:
            # The task that waited may have been cancelled, or an earlier record have failed.
            with contextlib.suppress(InvalidStateError):
                self._all.set_exception(_failure(error, message))
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_out += change
            is_over = self._num_out == 0
        if is_over:
            with contextlib.suppress(InvalidStateError):
                self._all.set_result(None)


def promise() -> tuple[Future[Delivery], Report]:
    """A future for one record, and the delivery report that fills it."""
    future: Future[Delivery] = Future()

    def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        # The task that waited may have been cancelled, and its future with it.
        with contextlib.suppress(InvalidStateError):
            if error is None:
                future.set_result(Delivery(message.topic(), message.partition(), message.offset()))
            else:
                future.set_exception(_failure(error, message))

    return future, report


def _failure(error: confluent_kafka.KafkaError, message: confluent_kafka.Message) -> BrokerError:
    return BrokerError(f"delivery to {message.topic()} failed: {error.str()} ({error.name()})")
