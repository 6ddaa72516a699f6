"""A trainer restores only checkpoints below its own checkpoint directory, whatever the ledger names."""

from pathlib import Path

import pytest

from rollstream.history.known import KnownHistory
from rollstream.schemas.errors import ConfigurationError
from rollstream.trainer.commits.checkpoint import CheckpointStore, Position, checkpoint_directory, read_position

POSITION = Position(
    run="demo", weight_version=3, step=3, cluster_id="cluster", topic_ids={}, next_offsets=(), open_groups=()
)

HISTORY = KnownHistory("4Tzq0h1yQ7y").snapshot()


def test_a_checkpoint_that_was_written_here_is_restored(tmp_path: Path) -> None:
    uri = CheckpointStore(tmp_path / "my checkpoints").write("3-abc", POSITION, HISTORY, lambda _: None)
    directory = checkpoint_directory(uri, tmp_path / "my checkpoints")
    assert read_position(directory) == POSITION


@pytest.mark.parametrize("uri", ["{other}", "{root}/../others/3-abc", "{root}", "file:///dev", "s3://bucket/3-abc"])
def test_a_checkpoint_elsewhere_is_refused_although_it_can_be_read(tmp_path: Path, uri: str) -> None:
    other = CheckpointStore(tmp_path / "others").write("3-abc", POSITION, HISTORY, lambda _: None)
    root = tmp_path / "checkpoints"
    with pytest.raises(ConfigurationError, match=r"a checkpoint elsewhere: .* set \[trainer\] checkpoints"):
        checkpoint_directory(uri.format(other=other, root=root.as_uri()), root)
