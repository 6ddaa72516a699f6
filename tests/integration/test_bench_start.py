"""`python -m tests.bench start` at a small size: every stage is ready on a run that was filled with synthetic steps."""

from pathlib import Path

import pytest

from rollstream.process.settings.base import STAGES, KafkaSettings
from tests.bench.long_history import HistoryShape
from tests.bench.start import measure


@pytest.mark.slow
def test_every_stage_gets_ready_after_few_and_after_many_steps(kafka: str, tmp_path: Path) -> None:
    shape = HistoryShape(steps=5, groups_per_step=2, group_size=2)
    report = measure(KafkaSettings(bootstrap_servers=kafka), tmp_path, shape, rounds=1)
    assert report["stages"].keys() == STAGES.keys()
    assert report["ratio"] > 0
    assert report["settings"]["steps"] == (5, 50)
