"""Whether a run's trainer lives, by the broker's word: while it does, it is the member of a group that reads nothing.

Needed where a living trainer must be told from a dead one without Redis and across machines (`weights rollback`).
It is a courtesy, not the guard: who takes over the transactional id fences whoever had it, present or not.
"""

import logging
import threading
import time
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.topics import LEDGER

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 30.0
_COORDINATOR_STARTS: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
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
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            group = admin.describe_consumer_groups([_group(run)], request_timeout=_ANSWER_SECONDS)[_group(run)]
            return bool(group.result(_ANSWER_SECONDS).members)
        except confluent_kafka.KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return False
            if code not in _COORDINATOR_STARTS or time.monotonic() > deadline:
                raise BrokerError(f"cannot ask who is in {_group(run)}: {error}") from error
        except TimeoutError as error:
            raise BrokerError(
                f"cannot ask who is in {_group(run)}: no broker answered in {_ANSWER_SECONDS:g} s; is Kafka up?"
            ) from error
        time.sleep(0.2)


def _group(run: str) -> str:
    return f"{run}.trainer-presence"
