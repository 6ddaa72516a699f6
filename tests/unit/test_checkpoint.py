"""A trainer restores only checkpoints below its own checkpoint directory, whatever the ledger names."""

from pathlib import Path

import pytest

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.known import KnownHistory
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError
from rollstream.trainer.commits.checkpoint import (
    Position,
    checkpoint_directory,
    newest_history,
    read_position,
    write_checkpoint,
)

POSITION = Position(
    run="demo", weight_version=3, step=3, cluster_id="cluster", topic_ids={}, next_offsets=(), open_groups=()
)

HISTORY = KnownHistory("4Tzq0h1yQ7y").snapshot()


def test_a_checkpoint_that_was_written_here_is_restored(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path / "my checkpoints")
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, lambda _: None)
    assert read_position(checkpoint_directory(store, uri)) == POSITION


@pytest.mark.parametrize("uri", ["{other}", "{root}/../others/3-abc", "{root}", "file:///dev", "s3://bucket/3-abc"])
def test_a_checkpoint_elsewhere_is_refused_although_it_can_be_read(tmp_path: Path, uri: str) -> None:
    other = write_checkpoint(DirectoryWeightStore(tmp_path / "others"), "3-abc", POSITION, HISTORY, lambda _: None)
    root = tmp_path / "checkpoints"
    with pytest.raises(
        ConfigurationError, match=r"a checkpoint that is not here, or damaged: .* set \[trainer\] checkpoints"
    ):
        checkpoint_directory(DirectoryWeightStore(root), uri.format(other=other, root=root.as_uri()))


def save_state(directory: Path) -> None:
    (directory / "state.pt").write_bytes(b"tensors" * 1000)


@pytest.mark.parametrize("name", ["state/state.pt", "position.json", "history.json"])
def test_a_checkpoint_with_a_flipped_bit_is_not_restored(tmp_path: Path, name: str) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    path = tmp_path / "3-abc" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"damaged: .*{name}: expected sha256 "):
        checkpoint_directory(DirectoryWeightStore(tmp_path), uri)


def test_a_history_with_another_digit_is_not_believed(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    assert newest_history(store, "abc", "4Tzq0h1yQ7y") == HISTORY
    path = tmp_path / "3-abc" / "history.json"
    path.write_text(path.read_text().replace(":0", ":1", 1))
    assert newest_history(store, "abc", "4Tzq0h1yQ7y") is None


def test_a_checkpoint_that_was_written_before_there_were_sums_is_restored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    (tmp_path / "3-abc" / "manifest.json").unlink()
    assert read_position(checkpoint_directory(store, uri)) == POSITION
    assert "without sums" in caplog.text


def test_a_checkpoint_that_changes_while_it_is_restored_is_told(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    state = checkpoint_directory(store, uri) / "state" / "state.pt"
    store.confirm()
    with state.open("r+b") as stream:  # in place, of the same size
        stream.write(b"T")
    with pytest.raises(CorruptWeightsError, match=r"state\.pt was changed between the check"):
        store.confirm()
    store.delete("3-abc")
    store.confirm()  # what retention deletes meanwhile was read as it was
