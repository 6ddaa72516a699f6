"""The trainer's commit: several records on several topics, all or none, and from one trainer only.

`init` fences the trainer that had the transactional id before. If that one was only paused or cut off from the network
and comes back, the broker refuses its commits. After an error the producer is never used again: in Kafka's protocol a
delayed EndTxn can tear a later transaction of the same producer (Jepsen, Bufstream 0.1.0; KIP-890).

A commit without an answer is no error: the client is asked to go on waiting for it. It sends EndTxn for the same
transaction again, to a new coordinator too, and no other transaction is begun, so there is none to tear. Whether the
commit still counts is the coordinator's decision alone: past transaction.timeout.ms it refuses. The records are no part
of this: what is not delivered within that time fails the transaction, and the process that is started next repeats it.
To repeat it here would need a new `init`, which would fence a trainer that took over meanwhile.
"""

import time
from collections.abc import Sequence
from typing import Final

import confluent_kafka
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from rollstream.bus.clients import made
from rollstream.bus.message import Delivery, OutRecord
from rollstream.bus.publisher import producer_config
from rollstream.process.crash_points import crash_point
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ExpiredTransactionError, FencedError, RollstreamError

# Readers see nothing after an open transaction: that of a dead trainer must not stop them for long.
TRANSACTION_TIMEOUT_SECONDS: Final = 10.0
# A broker that pauses and then dies is replaced well within this time.
COMMIT_PATIENCE_SECONDS: Final = 60.0
_INIT_TIMEOUT_SECONDS: Final = 60.0
_FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


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
            raise transaction_error(self._id, error, "taking over") from error

    def commit(self, records: Sequence[OutRecord]) -> list[Delivery]:
        """Publish all of `records` or none; returns where each lies, in order within a partition."""
        began = time.monotonic()
        delivered: list[Delivery] = []

        def note(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:  # with an error the commit fails, and says so
                kind, timestamp_ms = message.timestamp()
                appended_ms = timestamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0
                delivered.append(Delivery(message.topic(), message.partition(), message.offset(), appended_ms))

        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(
                    record.topic, value=record.value, key=record.key, headers=list(record.headers), on_delivery=note
                )
            self._producer.flush(TRANSACTION_TIMEOUT_SECONDS)
            crash_point("transaction_sent")
            until_answered(COMMIT_PATIENCE_SECONDS)(self._producer.commit_transaction, TRANSACTION_TIMEOUT_SECONDS)
            self._producer.poll(0)  # calls `note` for what was delivered during the commit
        except confluent_kafka.KafkaException as error:
            raise transaction_error(self._id, error, "committing", time.monotonic() - began) from error
        except SystemError as error:
            # A callback that the client calls while it raises (confluent-kafka-python, issues 729 and 865): whether the
            # transaction counts is as unknown as without an answer.
            raise BrokerError(f"the Kafka client failed while committing for {self._id}: {error}") from error
        crash_point("transaction_committed")
        return delivered


def until_answered(patience_seconds: float) -> Retrying:
    """Calls a function of the client again while it only got no answer; past the patience its error is raised."""
    return Retrying(
        retry=retry_if_exception(_is_unanswered), wait=wait_fixed(0.1), stop=stop_after_delay(patience_seconds),
        reraise=True,
    )  # fmt: skip


def _is_unanswered(error: BaseException) -> bool:
    return isinstance(error, confluent_kafka.KafkaException) and bool(error.args[0].retriable())


def transaction_error(
    transactional_id: str, error: confluent_kafka.KafkaException, doing: str, seconds: float = 0.0
) -> RollstreamError:
    """What the client's error means for a transaction that was begun `seconds` ago."""
    cause: KafkaError = error.args[0]
    if cause.code() == KafkaError.INVALID_PRODUCER_ID_MAPPING:
        # The broker forgets an id that was idle for transactional.id.expiration.ms: perhaps nobody took over.
        return ExpiredTransactionError(f"the broker does not know {transactional_id} any more: {cause.str()}")
    if cause.code() in _FENCED and seconds >= TRANSACTION_TIMEOUT_SECONDS:
        # The broker also fences a producer whose transaction it aborts: perhaps no other process took over.
        return ExpiredTransactionError(
            f"transaction of {transactional_id} was refused after {seconds:.0f} s, the bound is "
            f"{TRANSACTION_TIMEOUT_SECONDS:g} s: {cause.str()}"
        )
    if cause.code() in _FENCED:
        return FencedError(f"another process took over {transactional_id} while {doing}: {cause.str()}")
    return BrokerError(f"transaction of {transactional_id} failed while {doing}: {cause.str()} ({cause.name()})")
