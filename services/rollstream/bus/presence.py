"""Tells whether a run's trainer lives, without Redis and from any machine.

`weights rollback` and `ledger repair` ask, since they write beside it.

A living trainer is a member of a consumer group that reads nothing; the broker knows whether the group has a member.
This only warns people. What protects the ledger is fencing: whoever takes over the transactional id fences the trainer
that had it.
"""

import threading
from typing import Final, Self

import confluent_kafka
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from rollstream.bus.admin import until_settled, what_it_says
from rollstream.bus.clients import CLIENT_LOG, admin_client, made
from rollstream.process.ending import end_process
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError
from rollstream.schemas.topics import LEDGER

_ANSWER_SECONDS = 30.0
_LEAVES_SECONDS: Final = 2.0
GONE_AFTER_SECONDS: Final = 10
"""A killed trainer counts as present for this long; one that ends normally leaves the group immediately."""


class TrainerPresence:
    """Keeps this process in the group that the run's trainer belongs to; a thread of its own polls for it."""

    def __init__(self, kafka: KafkaSettings, run: str) -> None:
        # The classic protocol, since only there the member itself sets the session timeout.
        config = {
            **kafka.client_config(),
            "logger": CLIENT_LOG,
            "group.id": _group(run),
            "group.protocol": "classic",
            "session.timeout.ms": GONE_AFTER_SECONDS * 1000,
            "heartbeat.interval.ms": 2000,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
        self._consumer = made(confluent_kafka.Consumer, config, kafka)
        self._topic = LEDGER.of(run)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_end, name="trainer-presence", daemon=True)

    def __enter__(self) -> Self:
        # Paused: the group is joined for its list of members, not for records.
        self._consumer.subscribe([self._topic], on_assign=lambda consumer, partitions: consumer.pause(partitions))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        # While the group has a member that was killed, the broker does not answer, and the client would wait for 5 s.
        # The process ends without having left, then, and counts as present for as long as the killed one.
        self._thread.join(_LEAVES_SECONDS)

    def _poll_until_end(self) -> None:
        try:
            while not self._ending.is_set():
                self._consumer.poll(0.5)
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 (a trainer that is not seen to live would be written beside)
            end_process(error, "the trainer would not count as present any more")


def require_no_trainer(kafka: KafkaSettings, run: str, *, force: bool) -> None:
    """Raise `ConfigurationError` if a trainer lives, unless it may be fenced (`force`)."""
    if not force and is_trainer_present(kafka, run):
        raise ConfigurationError(
            f"a trainer of run {run} lives, or was killed less than {GONE_AFTER_SECONDS} s ago: "
            "stop it first, or fence it with --force (it exits with 75)"
        )


def is_trainer_present(kafka: KafkaSettings, run: str) -> bool:
    """Whether the run's trainer lives, or died less than `GONE_AFTER_SECONDS` ago; raises `BrokerError`."""
    try:
        with admin_client(kafka) as admin:
            return _has_members(admin, _group(run))
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return False
        raise BrokerError(f"cannot ask who is in {_group(run)}: {what_it_says(error)}") from error
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
