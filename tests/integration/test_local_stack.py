"""The local stack with real brokers."""

from confluent_kafka.admin import AdminClient


def test_the_shared_broker_answers(kafka: str, redis_url: str, topic_prefix: str) -> None:
    assert AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).brokers
    assert topic_prefix.startswith("test-the-shared")
