"""The trainer's commits on a real broker."""

from pathlib import Path

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.weight_store import DirectoryWeightStore
from rollstream.process.settings import KafkaSettings
from rollstream.trainer.commits.checkpoint import CheckpointStore
from rollstream.trainer.commits.commit import Commits, CommitSettings
from tests.harness.running import run_on


@pytest.fixture
def commits(kafka: str, topic_prefix: str, tmp_path: Path) -> Commits:
    """Those of a trainer that has just taken over its run."""
    settings = KafkaSettings(bootstrap_servers=kafka)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    publisher = TransactionalPublisher(settings, f"{topic_prefix}.trainer")
    publisher.init()
    return Commits(
        CommitSettings(incarnation="two", dtype="float32", keep_versions=2, keep_checkpoints=2),
        publisher,
        DirectoryWeightStore(tmp_path / "weights"),
        CheckpointStore(tmp_path / "checkpoints", "two"),
        run_on(settings, topic_prefix),
    )


def test_a_trainer_begins_by_removing_what_a_killed_one_left_half_written(commits: Commits, tmp_path: Path) -> None:
    kept = tmp_path / "weights" / "0-one"
    for left in (kept, tmp_path / "weights" / ".writing-1-one-0", tmp_path / "checkpoints" / ".writing-1-one-0"):
        left.mkdir(parents=True)
        (left / "model.safetensors").write_bytes(b"half")

    def save_weights(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"all")

    commits.restart(version=2, parent=None, step=0, save_weights=save_weights)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["0-one", "2-two"]
    assert list((tmp_path / "checkpoints").iterdir()) == []
