"""Fixtures every test may ask for."""

from tests.harness.kafka_fixtures import kafka, redis_url, topic_prefix

__all__ = ["kafka", "redis_url", "topic_prefix"]
