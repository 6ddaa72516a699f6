"""Whether a run's trainer lives, by the broker's word: while it does, it is the member of a group that reads nothing.

Needed where a living trainer must be told from a dead one without Redis and across machines (`weights rollback`).
It is a courtesy, not the guard: who takes over the transactional id fences whoever had it, present or not.
"""

import logging
import threading
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from rollstream.bus.admin import until_settled
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import LEDGER

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 30.0
GONE_AFTER_SECONDS: Final = 10
"""A killed trainer counts as present for this long; one that ends by itself leaves at once."""


class TrainerPresence:
    """Shows on the broker that this process is the run's trainer, from a thread of its own."""

    def __init__(self, kafka: KafkaSettings, run: str) -> None:
        # The classic protocol, since only there the member sets how soon it counts as gone.
        self._consumer = confluent_kafka.Consumer(
            {
                **kafka.client_config(),
                "logger": _LOG,
                "group.id": _group(run),
                "group.protocol": "classic",
                "session.timeout.ms": GONE_AFTER_SECONDS * 1000,
                "heartbeat.interval.ms": 2000,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        self._topic = LEDGER.of(run)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._stay, name="trainer-presence", daemon=True)

    def __enter__(self) -> Self:
        self._consumer.subscribe([self._topic], on_assign=lambda consumer, partitions: consumer.pause(partitions))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(timeout=2.0)
        self._consumer.close()

    def _stay(self) -> None:
        while not self._ending.is_set():
            self._consumer.poll(0.5)


def is_trainer_present(kafka: KafkaSettings, run: str) -> bool:
    """Whether the run's trainer lives, or died less than `GONE_AFTER_SECONDS` ago; raises `BrokerError`."""
    admin = AdminClient({**kafka.client_config(), "log_level": 0})  # what it would print, its errors say
    try:
        return _has_members(admin, _group(run))
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return False
        raise BrokerError(f"cannot ask who is in {_group(run)}: {error}") from error
    except TimeoutError as error:
        raise BrokerError(
            f"cannot ask who is in {_group(run)}: no broker answered in {_ANSWER_SECONDS:g} s; is Kafka up?"
        ) from error


@until_settled
def _has_members(admin: AdminClient, group: str) -> bool:
    described = admin.describe_consumer_groups([group], request_timeout=_ANSWER_SECONDS)[group]
    return bool(described.result(_ANSWER_SECONDS).members)


def _group(run: str) -> str:
    return f"{run}.trainer-presence"
