"""What tests of the trainer share: a fresh run, and what starts trainers of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.running import Run
from tests.harness.trainer_runs import Start, a_trainer_run, trainers


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path, model: Path) -> Iterator[Run]:
    """A fresh run, configured for a trainer."""
    with a_trainer_run(kafka, topic_prefix, tmp_path, model) as fresh:
        yield fresh


@pytest.fixture
def start(run: Run) -> Iterator[Start]:
    """Starts a trainer of the run; what still runs at the end is killed."""
    with trainers(run) as start_one:
        yield start_one
