"""The trainer's commit: several records on several topics, all or none, and from one trainer only.

`init` fences the trainer that had the transactional id before. If that one was only paused or cut off from the network
and comes back, the broker refuses its commits. After an error the producer is never used again: in Kafka's protocol a
delayed EndTxn can tear a later transaction of the same producer (Jepsen, Bufstream 0.1.0; KIP-890).
"""

import time
from collections.abc import Sequence

import confluent_kafka
from confluent_kafka import KafkaError

from rollstream.bus.clients import made
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import producer_config
from rollstream.process.crash_points import crash_point
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError, ExpiredTransactionError, FencedError, RollstreamError

# Readers see nothing after an open transaction: that of a dead trainer must not stop them for long.
TRANSACTION_TIMEOUT_SECONDS = 10.0
_INIT_TIMEOUT_SECONDS = 60.0
_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)


class TransactionalPublisher:
    """One transactional producer. Every error is raised as `FencedError` or `BrokerError` and must end the process."""

    def __init__(self, kafka: KafkaSettings, transactional_id: str) -> None:
        timeout_ms = int(TRANSACTION_TIMEOUT_SECONDS * 1000)
        config = {
            **producer_config(kafka, transactional_id),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # librdkafka refuses a delivery timeout above the transaction timeout.
            "delivery.timeout.ms": timeout_ms,
        }
        self._producer = made(confluent_kafka.Producer, config, kafka)
        self._id = transactional_id

    def init(self) -> None:
        """Take over the transactional id. The process that held it is fenced, and its open transaction is aborted."""
        try:
            self._producer.init_transactions(_INIT_TIMEOUT_SECONDS)
        except confluent_kafka.KafkaException as error:
            raise self._error_for(error, "taking over") from error

    def commit(self, records: Sequence[OutRecord]) -> None:
        """Publish all of `records` or none."""
        began = time.monotonic()
        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(record.topic, value=record.value, key=record.key, headers=list(record.headers))
            self._producer.flush(TRANSACTION_TIMEOUT_SECONDS)
            crash_point("transaction_sent")
            self._producer.commit_transaction(TRANSACTION_TIMEOUT_SECONDS)
        except confluent_kafka.KafkaException as error:
            raise self._error_for(error, "committing", time.monotonic() - began) from error
        crash_point("transaction_committed")

    def _error_for(self, error: confluent_kafka.KafkaException, doing: str, seconds: float = 0.0) -> RollstreamError:
        cause: KafkaError = error.args[0]
        if cause.code() in _FENCED and seconds >= TRANSACTION_TIMEOUT_SECONDS:
            # The broker also fences a producer whose transaction it aborts: perhaps no other process took over.
            return ExpiredTransactionError(
                f"transaction of {self._id} was refused after {seconds:.0f} s, the bound is "
                f"{TRANSACTION_TIMEOUT_SECONDS:g} s: {cause.str()}"
            )
        if cause.code() in _FENCED:
            return FencedError(f"another process took over {self._id} while {doing}: {cause.str()}")
        return BrokerError(f"transaction of {self._id} failed while {doing}: {cause.str()} ({cause.name()})")
