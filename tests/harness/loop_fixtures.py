"""What tests of the whole loop share: the trainer's tiny model, and a run on the session's broker and Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.running import Run, a_run
from tests.harness.trainer_runs import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model small enough for many optimizer steps a second."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    """A fresh run on the shared broker."""
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as fresh:
        yield fresh
