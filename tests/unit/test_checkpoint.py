"""A trainer restores only checkpoints below its own checkpoint directory, whatever the ledger names."""

from pathlib import Path

import pytest

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.known import KnownHistory
from rollstream.schemas.errors import ConfigurationError
from rollstream.trainer.commits.checkpoint import CheckpointStore, Position, read_position

POSITION = Position(
    run="demo", weight_version=3, step=3, cluster_id="cluster", topic_ids={}, next_offsets=(), open_groups=()
)

HISTORY = KnownHistory("4Tzq0h1yQ7y").snapshot()


def test_a_checkpoint_that_was_written_here_is_restored(tmp_path: Path) -> None:
    store = CheckpointStore(DirectoryWeightStore(tmp_path / "my checkpoints"))
    uri = store.write("3-abc", POSITION, HISTORY, lambda _: None)
    assert read_position(store.directory(uri)) == POSITION


@pytest.mark.parametrize("uri", ["{other}", "{root}/../others/3-abc", "{root}", "file:///dev", "s3://bucket/3-abc"])
def test_a_checkpoint_elsewhere_is_refused_although_it_can_be_read(tmp_path: Path, uri: str) -> None:
    other = CheckpointStore(DirectoryWeightStore(tmp_path / "others")).write("3-abc", POSITION, HISTORY, lambda _: None)
    root = tmp_path / "checkpoints"
    with pytest.raises(ConfigurationError, match=r"a checkpoint that is not here: .* set \[trainer\] checkpoints"):
        CheckpointStore(DirectoryWeightStore(root)).directory(uri.format(other=other, root=root.as_uri()))
