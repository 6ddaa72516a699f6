"""What a Kafka client refuses, and that no broker answers, is one error of ours that shows no secret."""

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError


def test_an_address_is_told_without_its_password() -> None:
    kafka = KafkaSettings(bootstrap_servers="SASL_SSL://me:hunter2@127.0.0.1:1")
    with pytest.raises(BrokerError, match=r"no broker answered at SASL_SSL://\*\*\*@127.0.0.1:1") as raised:
        cluster_topics(kafka, 0.2)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong", [{"sasl.pasword": "hunter2"}, {"security.protocol": "SSL", "ssl.ca.location": "/hunter2"}]
)
@pytest.mark.parametrize(
    "make",
    [
        KafkaAdmin,
        lambda kafka: TopicReader(kafka, ["t"]),
        lambda kafka: Publisher(kafka, client_id="x"),
        lambda kafka: TransactionalPublisher(kafka, "x"),
    ],
    ids=["admin", "reader", "publisher", "transactions"],
)
def test_a_security_setting_that_the_client_refuses_is_an_error_of_ours_without_its_value(make, wrong) -> None:
    kafka = KafkaSettings(security=wrong)
    with pytest.raises(ConfigurationError, match=r"the Kafka client refuses the settings of \[kafka\]") as raised:
        make(kafka)
    assert "hunter2" not in str(raised.value)
    assert "pasword" in str(raised.value) or "ssl.ca.location" in str(raised.value)
