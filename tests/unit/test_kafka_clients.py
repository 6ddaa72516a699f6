"""What a Kafka client refuses, and that no broker answers, is one error of ours that shows no secret."""

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError


def test_the_address_that_does_not_answer_is_told() -> None:
    with pytest.raises(BrokerError, match=r"no broker answered at 127\.0\.0\.1:1 within"):
        cluster_topics(KafkaSettings(bootstrap_servers="127.0.0.1:1"), 0.2)


@pytest.mark.parametrize(
    "wrong", [{"sasl.pasword": "hunter2"}, {"security.protocol": "SSL", "ssl.cipher.suites": "hunter2"}]
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
    assert "pasword" in str(raised.value) or "ssl.cipher.suites" in str(raised.value)
