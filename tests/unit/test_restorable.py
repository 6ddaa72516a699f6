"""Which versions a run can be rolled back to: their files are there, and a checkpoint that a trainer goes on from."""

from collections.abc import Set
from pathlib import Path

import pytest

from rollstream.history.ledger import LedgerFold
from rollstream.history.read import History
from rollstream.history.restorable import checkpoint_is_there, choices, restorable
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.ledger import EntryKind
from tests.harness.builders import an_entry, published


def a_history(versions: int, *, checkpoints: tuple[int, ...]) -> History:
    """Steps up to this version; some entries name a checkpoint, c1 that of version 1."""
    fold = LedgerFold()
    for version in range(versions + 1):
        fold.add(
            an_entry(
                EntryKind.STEP if version else EntryKind.RESTART, step=version, weight_version=version,
                parent_version=version - 1 if version else None,
                checkpoint=f"c{version}" if version in checkpoints else None,
            )
        )  # fmt: skip
    records = {version: published(version, uri=f"w{version}") for version in range(versions + 1)}
    return History(published=records, entries={}, fold=fold, newest_version=versions, problems=(), skipped=frozenset())


def found(history: History, gone: Set[str] = frozenset(), unseen: Set[str] = frozenset()) -> list[int]:
    def look_up(uri: str) -> bool | None:
        return None if uri in unseen else uri not in gone

    return list(restorable(history, look_up, look_up))


def test_versions_from_a_kept_checkpoint_on_can_be_rolled_back_to() -> None:
    history = a_history(6, checkpoints=(2, 4))
    assert found(history) == [6, 5, 4, 3, 2, 1, 0]
    # Versions 2 and 3 would need the deleted one; 0 and 1 start from the initial model.
    assert found(history, gone={"c2"}) == [6, 5, 4, 1, 0]
    assert found(history, gone={"c2", "w0", "w1", "w2", "w3", "w5"}) == [6, 4]
    assert found(history, gone={"c2", "c4", "w0", "w1"}) == []


def test_what_cannot_be_seen_is_not_offered_and_not_asked_for_twice() -> None:
    history = a_history(6, checkpoints=(2, 4))
    assert found(history, unseen={"c2"}) == [6, 5, 4]
    asked: list[str] = []

    def nothing_seen(uri: str) -> None:
        asked.append(uri)

    assert list(restorable(history, nothing_seen, nothing_seen)) == []
    assert asked == ["w6"]


def test_a_long_history_costs_a_bounded_number_of_look_ups() -> None:
    asked: list[str] = []

    def gone(uri: str) -> bool:
        asked.append(uri)
        return False

    history = a_history(500, checkpoints=(450,))
    assert list(restorable(history, gone, gone)) == []
    assert len(asked) == 100


def test_an_error_names_ten_versions_at_most() -> None:
    assert choices(iter([6, 4])) == "choose one of 6, 4"
    assert choices(iter(range(20, 0, -1))) == "choose one of 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, and older ones"
    assert "no version can be seen" in choices(iter([]))


@pytest.mark.parametrize(
    ("uri", "is_there"),
    [
        ("file://{root}/checkpoints/1-abc", True),
        ("file://{root}/checkpoints/2-abc", False),
        ("file://{root}/elsewhere/1-abc", None),  # where no directory is mounted nothing can be said
        ("http://{root}/checkpoints/1-abc", None),
        ("s3://user@bucket/1-abc", None),
        ("checkpoints/1-abc", None),
        ("file:///" + "x" * 5000 + "/1-abc", None),
        ("file:///\0/1-abc", None),
        ("", None),
    ],
)
def test_a_checkpoint_is_there_or_gone_or_cannot_be_seen(uri: str, is_there: bool | None, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "1-abc").mkdir(parents=True)
    assert checkpoint_is_there(uri.format(root=tmp_path), StorageSettings()) is is_there
