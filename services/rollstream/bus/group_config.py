"""The settings of a member of a consumer group: ours, and librdkafka's for both group protocols."""

import logging
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError

from rollstream.bus.clients import CLIENT_LOG
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError

_LOG = logging.getLogger(__name__)

# Waiting does not help against these: a person must change rights or settings.
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_GROUP_ID,
    KafkaError._AUTHENTICATION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How many records one member takes at a time, and how long it may take over them."""

    max_in_flight: int = 64
    """Most records taken and not finished."""
    max_weight: int = 2**62
    """Most summed weight of those records (generator: samples)."""
    record_deadline_seconds: float = 1800.0
    """A record that is handled for longer ends the process: its handler hangs."""
    commit_interval_seconds: float = 1.0
    max_poll_interval_seconds: float = 300.0
    """A member that does not poll for so long is excluded by Kafka."""
    revoke_drain_seconds: float = 20.0
    """Time for revoked partitions to finish; below half of the poll interval."""


def group_config(kafka: KafkaSettings, group_id: str, max_poll_interval_seconds: float) -> dict[str, Any]:
    """librdkafka's settings for a member of `group_id`. Nothing is committed automatically."""
    return {
        **kafka.client_config(),
        "client.id": group_id,
        "logger": CLIENT_LOG,
        "group.id": group_id,
        "group.protocol": kafka.group_protocol,
        **_group_protocol(kafka),
        # Automatic commits would pass records that are not finished.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "max.poll.interval.ms": int(max_poll_interval_seconds * 1000),
        # Not the defaults of 64 MiB and 1 MiB: a pause throws away what is fetched, and it is fetched again. The bound
        # of a partition counts bytes as compressed, so a member of a long log took 100 MB of memory, now 29. A larger
        # record comes alone.
        "queued.max.messages.kbytes": 4096,
        "fetch.message.max.bytes": 262144,
        "fetch.max.bytes": 16777216,
        # How long the broker holds an empty fetch back: a resumed partition must wait until the running fetch for the
        # other partitions returns, and each fetch that brings nothing costs the broker.
        "fetch.wait.max.ms": 250,
        "fetch.queue.backoff.ms": 50,
    }


def _group_protocol(kafka: KafkaSettings) -> dict[str, str]:
    if kafka.group_protocol == "classic":
        # The group waits for a member that leaves during a rebalance until its session ends. The default is 45 s.
        # Its own metadata tells the group's leader of partitions that are added, by default after five minutes.
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": "15000",
            "topic.metadata.refresh.interval.ms": "20000",
        }
    # The default, uniform, balances the sum over all topics: one member may get all of prompts, another eval-prompts
    # alone. range splits each topic. In this protocol session and heartbeat times are settings of the broker.
    return {"group.remote.assignor": "range"}


def note_error(group_id: str, error: KafkaError) -> None:
    """Log what the client of a member reports; raises `BrokerError` if it will never go on by itself."""
    if error.fatal() or error.code() in _DENIED:
        raise BrokerError(f"consumer of {group_id}: {error.str()} ({error.name()})")
    _LOG.warning("kafka consumer of %s: %s (%s)", group_id, error.str(), error.name())
