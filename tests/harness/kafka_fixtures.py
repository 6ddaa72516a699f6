"""The real broker and Redis of a test run: started when the first test asks for them, one of each for all tests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of one real broker, shared by the whole session: name your topics by `topic_prefix`."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), plan_cluster(1))
    try:
        cluster.start()
        yield cluster.bootstrap_servers
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one real Redis server, shared by the whole session."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), free_ports(1)[0])
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A run name of this test's own, at most 60 characters of `[a-z0-9-]`."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].rstrip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"
