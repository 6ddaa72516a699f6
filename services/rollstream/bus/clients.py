"""Makes Kafka clients, and asks whether a broker answers. What the client refuses or hides is said in our errors."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient

from rollstream.process.logs import KAFKA_CLIENT
from rollstream.process.masking import without_values
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.settings.security_files import require_readable_files
from rollstream.schemas.errors import BrokerError, ConfigurationError

CLIENT_LOG: Final = logging.getLogger(KAFKA_CLIENT)
"""Gets the lines that the clients print by themselves."""
BROKER_ANSWERS_SECONDS: Final = 5.0
"""Then it is said that none does. A stage waits on, since its cluster may start together with it."""
# Half of it is also the time between two connections that a client begins, and the first is to a bootstrap server: a
# start has a dozen clients. The wait between two attempts still grows up to 10 s.
_QUICK: Final = {"reconnect.backoff.ms": 20}

C = TypeVar("C")


def quiet_config(kafka: KafkaSettings) -> dict[str, Any]:
    """For clients whose errors are raised here: of a broker that is gone they would print hundreds of lines besides."""
    return {**kafka.client_config(), "log_level": 0}


def made(kind: Callable[[dict[str, Any]], C], config: dict[str, Any], kafka: KafkaSettings) -> C:
    """`kind(config)`. Raises `ConfigurationError` if the client refuses a setting of `[kafka]`."""
    require_readable_files(kafka.security)
    try:
        return kind({**_QUICK, **config})
    except confluent_kafka.KafkaException as error:
        raise ConfigurationError(
            f"the Kafka client refuses the settings of [kafka]: {_without_secrets(str(error.args[0].str()), kafka)}"
        ) from None


@contextmanager
def admin_client(kafka: KafkaSettings, **config: Any) -> Iterator[AdminClient]:
    """A client for questions and commands to the cluster, closed by this thread at the end of the block.

    Otherwise librdkafka may abort the process. The future of a request keeps its error. Where that error is raised, its
    traceback keeps the function that holds the client. If the client's own thread lets go of the future last, it closes
    the client, which it must not do (confluent-kafka-python, pull request 2131).
    """
    with made(AdminClient, {**quiet_config(kafka), **config}, kafka) as client:
        yield client


def know_brokers(client: Any, topic: str | None = None, timeout_seconds: float = BROKER_ANSWERS_SECONDS) -> None:
    """Have a new client get to know the brokers, and the leaders of `topic`, before it is asked what needs a leader.

    Once librdkafka 2.16 knows the brokers it closes its connection to the bootstrap server, and with it loses any
    question for leaders that is under way there: measured with 13 of 100 new clients. It asks again after 1 or 3 s.
    Only this question it repeats at once. Whether it was answered shows at the next one.
    """
    with suppress(confluent_kafka.KafkaException):
        client.list_topics(topic, timeout=timeout_seconds) if topic else client.list_topics(timeout=timeout_seconds)


def cluster_topics(kafka: KafkaSettings, timeout_seconds: float = BROKER_ANSWERS_SECONDS) -> set[str]:
    """The names of all topics. Raises `BrokerError`, with address and reason, if no broker answers in time."""
    reasons: list[str] = []
    # Without its log: what it would print many times is said once in the error.
    with admin_client(kafka, error_cb=lambda error: reasons.append(error.str())) as client:
        try:
            return set(client.list_topics(timeout=timeout_seconds).topics)
        except confluent_kafka.KafkaException as error:
            client.poll(0)  # the reasons are handed over here
            reason = _without_secrets(reasons[0] if reasons else str(error.args[0].str()), kafka)
            raise BrokerError(
                f"no broker answered at {kafka.bootstrap_servers} within {timeout_seconds:g} s ({reason}): is Kafka "
                "up? `rollstream up` starts one; kafka.bootstrap_servers says where it is"
            ) from error


def _without_secrets(text: str, kafka: KafkaSettings) -> str:
    return without_values((secret.get_secret_value() for secret in kafka.security.values()), text)
