"""How a member of a consumer group is configured, for both group protocols."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka

from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError

_LOG = logging.getLogger(__name__)

_METADATA_TIMEOUT_SECONDS: Final = 30.0


def group_config(kafka: KafkaSettings, group_id: str, max_poll_interval_seconds: float) -> dict[str, Any]:
    """librdkafka's settings of a member of `group_id` that commits by itself, and only what it means to."""
    return {
        **kafka.client_config(),
        "client.id": group_id,
        "logger": _LOG,
        "group.id": group_id,
        "group.protocol": kafka.group_protocol,
        **_group_protocol(kafka),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "max.poll.interval.ms": int(max_poll_interval_seconds * 1000),
        "queued.max.messages.kbytes": 16384,
        "fetch.max.bytes": 16777216,
        # A resumed partition waits for the fetch that is out for the others.
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 50,
    }


def _group_protocol(kafka: KafkaSettings) -> dict[str, str]:
    if kafka.group_protocol == "classic":
        # Who leaves in the middle of a rebalance is waited for until its session ends: a third of the default.
        return {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": "15000"}
    # The default, uniform, balances the sum over topics: one member may get all of prompts, another only eval-prompts.
    # range splits each topic. Session and heartbeat times are the broker's settings in this protocol.
    return {"group.remote.assignor": "range"}


def check_topics(client: confluent_kafka.Consumer, topics: Sequence[str]) -> None:
    """Raise `ConfigurationError` naming the topics that do not exist, `BrokerError` if no broker answers."""
    try:
        existing = client.list_topics(timeout=_METADATA_TIMEOUT_SECONDS).topics
    except confluent_kafka.KafkaException as error:
        raise BrokerError(f"no broker answered: {error}; is Kafka up? `rollstream up` starts one") from error
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise ConfigurationError(f"no topics {', '.join(missing)}: make them with `rollstream topics create`")
