"""The servers of a test run: started when the first test asks for them, one of each for all tests."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.harness.shared_servers import server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Bootstrap servers of one real broker, shared by the whole run: name your topics by `topic_prefix`."""
    return server("kafka", tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of one real Redis server, shared by the whole run."""
    return server("redis", tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def forks() -> str:
    """The process that stages are forked from: its imports take long, and count as no test's time."""
    return server("forks", Path())


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A run name of this test's own, at most 60 characters of `[a-z0-9-]`."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].rstrip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}"
