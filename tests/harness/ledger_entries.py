"""Entries of a ledger and folds of them, for tests of what survives."""

from datetime import UTC, datetime

from rollstream.history.ledger import FoldSnapshot, LedgerFold
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, TrainedRollout

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(
    kind: EntryKind,
    version: int,
    parent: int | None = None,
    *,
    step: int = 0,
    checkpoint: str | None = None,
    trained: tuple[str, ...] = (),
    dropped: tuple[str, ...] = (),
) -> LedgerEntry:
    closed = [ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in trained]
    closed += [ClosedGroup(group_id=group, outcome=GroupOutcome.DROPPED, reason="lost") for group in dropped]
    rollouts = [TrainedRollout(rollout_id=f"{g}-0", attempt_id="a", partition=0, offset=0) for g in trained]
    return LedgerEntry(
        kind=kind, incarnation="one", step=step, weight_version=version, parent_version=parent, checkpoint=checkpoint,
        trained=tuple(rollouts), closed=tuple(closed), started_at=NOW, finished_at=NOW,
    )  # fmt: skip


START = entry(EntryKind.RESTART, 0)


def step(version: int, parent: int, **fields: object) -> LedgerEntry:
    return entry(EntryKind.STEP, version, parent, **fields)  # type: ignore[arg-type]


def stored(snapshot: FoldSnapshot) -> FoldSnapshot:
    """The same, written to a file and read again."""
    return FoldSnapshot.model_validate_json(snapshot.model_dump_json())


def a_fold(*entries: LedgerEntry) -> LedgerFold:
    fold = LedgerFold()
    for item in entries:
        fold.add(item)
    return fold
