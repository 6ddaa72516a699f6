"""Computes the surviving branch of the ledger: what still counts after restarts and rollbacks. Pure.

The ledger is append-only and has one writer at a time (a new trainer fences the one before). But its history branches:
a trainer that restores a checkpoint, or an operator who rolls back, goes on from an older weight version. Their entry
names that version as its parent. All entries after the parent's are cut; the groups that they closed are open again.

Example, with versions in brackets; (c) means that the entry names a checkpoint:

    restart[0] step[1](c) step[2] drops step[3]     killed: the newest checkpoint is version 1's
    restart[0] step[1](c) restart[4 ← 1] step[5]    the chain after the next trainer's first step
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from rollstream.history.versions import VersionRange, VersionTree
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import (
    NON_FINITE_REASON,
    UPDATES_SKIPPED,
    ClosedGroup,
    EntryKind,
    GroupOutcome,
    LedgerEntry,
    TrainedRollout,
)

# Checkpoints that old are deleted, so nobody restores them; a way back behind them needs the whole ledger.
_CHECKPOINTS_IN_SNAPSHOT: Final = 100


@dataclass(frozen=True, kw_only=True)
class Survivors:
    """The surviving branch of a whole ledger.

    `chain`: the surviving entries in order. `closed`: group_id → how it closed. `versions`: all versions, those of cut
    entries too. `current_version`: None before the first start. `max_version`: the largest of all entries, -1 before
    the first start. `step`: optimizer steps on the chain. `checkpoint`: the newest surviving entry that names one.
    """

    chain: tuple[LedgerEntry, ...]
    closed: Mapping[str, ClosedGroup]
    versions: VersionTree
    current_version: int | None
    max_version: int
    step: int
    checkpoint: LedgerEntry | None

    @cached_property
    def trained(self) -> Mapping[str, TrainedRollout]:
        """rollout_id → the record that a surviving step trained on."""
        return {rollout.rollout_id: rollout for entry in self.chain for rollout in entry.trained}


class NamedCheckpoint(NamedTuple):
    """A checkpoint on the surviving branch: the version whose entry names it, that entry's step, and where it lies."""

    weight_version: int
    step: int
    uri: str


class Closing(NamedTuple):
    """The groups that one surviving entry closed, and no surviving entry before it; `is_drops`: its kind.

    `non_finite`: those of them of whose step an update was skipped, since its loss or gradient was not finite.
    """

    weight_version: int
    is_drops: bool
    closed_at: datetime
    group_ids: tuple[str, ...]
    non_finite: tuple[str, ...]


class FoldSnapshot(BaseModel):
    """All that a `LedgerFold` knows at one entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    versions: tuple[VersionRange, ...]
    current_version: int | None
    step: int
    checkpoints: tuple[NamedCheckpoint, ...]
    closings: tuple[Closing, ...]
    forgotten_until: datetime | None = Field(description="When the newest group closed that was forgotten")
    cuts_from: int = Field(description="The oldest version that a later entry may go back to")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerChange:
    """What one entry changed: the groups that it closed, and those that it opened again."""

    closed: tuple[str, ...]
    reopened: tuple[str, ...]


class LedgerFold:
    """Computes the surviving branch one entry at a time, for processes that read the ledger for weeks.

    An entry costs time for its own size, a cut for the size of what it cuts. Kept are ranges of versions, checkpoints,
    and the ids of closed groups until `forget`. The surviving versions are the current one and its ancestors.

    What it knows, and changes itself alone: `closed`, ids of the groups that are closed on the surviving branch.
    `versions`: all of them, those of cut entries too. `current_version`: at the end of the chain, None before the first
    start. `step`: optimizer steps on the chain. `checkpoints`: those that surviving entries name, oldest first.
    """

    def __init__(self, snapshot: FoldSnapshot | None = None) -> None:
        """Begin before the first entry, or where the snapshot was taken."""
        self.versions = VersionTree(list(snapshot.versions) if snapshot else [])
        self.current_version = snapshot.current_version if snapshot else None
        self.step = snapshot.step if snapshot else 0
        self.checkpoints = list(snapshot.checkpoints) if snapshot else []
        self._closings = deque(snapshot.closings if snapshot else ())
        self.closed = {group for closing in self._closings for group in closing.group_ids}
        self._forgotten_until = snapshot.forgotten_until if snapshot else None
        self._cuts_from = snapshot.cuts_from if snapshot else 0
        self._newest_at: datetime | None = None

    def add(self, entry: LedgerEntry, appended_at: datetime | None = None) -> LedgerChange:
        """Add the next entry. If it contradicts earlier ones, raises `InconsistentLedgerError` and changes nothing.

        `appended_at`: the broker's time, by which groups are forgotten. Without it the writer's is taken, whose clock
        may be wrong; that does for those who forget nothing.

        An entry of kind skip belongs to no branch, and changes nothing either: readers look at it (`passing.py`).
        """
        self._check(entry)
        at = appended_at or entry.finished_at
        self._disbelieve_after(at)
        if entry.kind is EntryKind.SKIP:
            return LedgerChange(closed=(), reopened=())
        version, is_drops = entry.weight_version, entry.kind is EntryKind.DROPS
        reopened: tuple[str, ...] = ()
        if entry.kind in (EntryKind.RESTART, EntryKind.ROLLBACK) and entry.parent_version is not None:
            reopened = self._cut(entry.parent_version)
        if not is_drops:
            self.versions.add(version, entry.parent_version, is_step=entry.kind is EntryKind.STEP)
        if entry.checkpoint is not None:
            self.checkpoints.append(NamedCheckpoint(version, entry.step, entry.checkpoint))
        newly = {group.group_id: group for group in entry.closed if group.group_id not in self.closed}
        closed = tuple(newly)
        if closed:
            self.closed.update(closed)
            non_finite = tuple(group_id for group_id, group in newly.items() if _was_non_finite(group, entry))
            self._closings.append(Closing(version, is_drops, at, closed, non_finite))
        self.current_version, self.step = version, entry.step
        return LedgerChange(closed=closed, reopened=reopened)

    def _disbelieve_after(self, at: datetime) -> None:
        """Take no earlier entry to be later than one that was appended `at`: some clock was wrong then.

        A snapshot may hold such a time, and would call every group forgotten until that date.
        """
        if self._forgotten_until is not None:
            self._forgotten_until = min(self._forgotten_until, at)
        if self._newest_at is None:  # only those of a snapshot may lie in any order
            self._closings = deque(_closed_by(at, closing) for closing in self._closings)
        self._newest_at = at
        later: list[Closing] = []
        while self._closings and self._closings[-1].closed_at > at:
            later.append(_closed_by(at, self._closings.pop()))
        self._closings.extend(reversed(later))

    def forget(self, kept: timedelta) -> None:
        """Forget groups that closed so long before the newest entry that none of their records can come any more."""
        if self._newest_at is None:
            return
        closed_before = self._newest_at - kept
        while self._closings and self._closings[0].closed_at < closed_before:
            closing = self._closings.popleft()
            self.closed.difference_update(closing.group_ids)
            self._forgotten_until = max(closing.closed_at, self._forgotten_until or closing.closed_at)

    def is_forgotten(self, submitted_at: datetime) -> bool:
        """Whether a group whose prompt was submitted then may have closed and been forgotten."""
        return self._forgotten_until is not None and submitted_at <= self._forgotten_until

    def snapshot(self) -> FoldSnapshot:
        """What a fold goes on from: with it and all later entries it is as if it had read every entry."""
        checkpoints = tuple(self.checkpoints[-_CHECKPOINTS_IN_SNAPSHOT:])
        is_whole = len(checkpoints) == len(self.checkpoints)
        return FoldSnapshot(
            versions=tuple(self.versions.ranges),
            current_version=self.current_version,
            step=self.step,
            checkpoints=checkpoints,
            closings=tuple(self._closings),
            forgotten_until=self._forgotten_until,
            cuts_from=self._cuts_from if is_whole else checkpoints[0].weight_version,
        )

    @property
    def first_version(self) -> int | None:
        """The version that the first start published, an ancestor of all others; None before it."""
        return self.versions.ranges[0].first if self.versions.ranges else None

    @property
    def max_version(self) -> int:
        """Largest weight version of all entries, those of cut entries too; -1 before the first start."""
        return self.versions.ranges[-1].last if self.versions.ranges else -1

    @property
    def checkpoint(self) -> NamedCheckpoint | None:
        """The newest checkpoint that a surviving entry names."""
        return self.checkpoints[-1] if self.checkpoints else None

    def surviving_versions(self) -> Iterator[int]:
        """The versions on the surviving branch, the newest first."""
        if self.current_version is not None:
            for versions in self.versions.branch(self.current_version):
                yield from reversed(versions)

    def is_surviving(self, version: int) -> bool:
        current = self.current_version
        return current is not None and any(version in versions for versions in self.versions.branch(current))

    def non_finite_after(self, version: int) -> tuple[str, ...]:
        """Groups of non-finite steps, out of the surviving entries after the one that made `version`."""
        later = (one for one in self._closings if _is_after(version, one.weight_version, one.is_drops))
        return tuple(group for closing in later for group in closing.non_finite)

    def _check(self, entry: LedgerEntry) -> None:
        what = f"ledger entry {entry.kind.value} of version {entry.weight_version} by {entry.incarnation}"
        if entry.kind is EntryKind.UNKNOWN:
            raise InconsistentLedgerError(f"{what}: its kind is unknown here; a newer rollstream wrote it, update this")
        if bool(entry.skipped) != (entry.kind is EntryKind.SKIP):
            raise InconsistentLedgerError(f"{what}: {len(entry.skipped)} records to skip, only those of skip have some")
        if entry.kind is EntryKind.SKIP:
            return
        if entry.kind is EntryKind.DROPS:
            if entry.weight_version != self.current_version:
                raise InconsistentLedgerError(f"{what}: drops belong to the current version {self.current_version}")
            if entry.checkpoint is not None:
                # A restart from this checkpoint would cut the drops, but read on from offsets after their groups: the
                # groups would be open again, and nobody would close them.
                raise InconsistentLedgerError(f"{what}: only an entry that makes a version can name a checkpoint")
            return
        if entry.weight_version <= self.max_version:
            raise InconsistentLedgerError(f"{what}: versions only grow, and {self.max_version} is there already")
        self._check_parent(entry, what)

    def _check_parent(self, entry: LedgerEntry, what: str) -> None:
        parent = entry.parent_version
        if parent is None:
            if self.current_version is not None or entry.kind is not EntryKind.RESTART:
                raise InconsistentLedgerError(f"{what}: only the first restart of a run has no parent version")
        elif not self.is_surviving(parent):
            raise InconsistentLedgerError(f"{what}: its parent, version {parent}, is not on the surviving branch")
        elif entry.kind is EntryKind.STEP and parent != self.current_version:
            raise InconsistentLedgerError(f"{what}: a step's parent must be {self.current_version}, not {parent}")
        elif parent < self._cuts_from:
            raise InconsistentLedgerError(f"{what}: version {parent} is too old, {self._cuts_from} is remembered")

    def _cut(self, parent: int) -> tuple[str, ...]:
        """Go back to the entry that made version `parent`; returns the groups that are open again."""
        reopened: list[str] = []
        while self._closings and _is_after(parent, self._closings[-1].weight_version, self._closings[-1].is_drops):
            reopened.extend(self._closings.pop().group_ids)
        self.closed.difference_update(reopened)
        while self.checkpoints and self.checkpoints[-1].weight_version > parent:
            self.checkpoints.pop()
        return tuple(reopened)


def _is_after(parent: int, version: int, is_drops: bool) -> bool:
    """Whether an entry on the chain comes after the one that made version `parent`."""
    return version > parent or (version == parent and is_drops)


def _closed_by(at: datetime, closing: Closing) -> Closing:
    return closing if closing.closed_at <= at else closing._replace(closed_at=at)


def _was_non_finite(group: ClosedGroup, entry: LedgerEntry) -> bool:
    is_trained = group.outcome is GroupOutcome.TRAINED
    return group.reason == NON_FINITE_REASON or (is_trained and entry.metrics.get(UPDATES_SKIPPED, 0.0) > 0)


def surviving(entries: Iterable[LedgerEntry]) -> Survivors:
    """The surviving branch of a whole ledger, from its first entry on; raises `InconsistentLedgerError`."""
    fold = LedgerFold()
    chain: list[LedgerEntry] = []
    for entry in entries:
        fold.add(entry)
        if entry.kind is EntryKind.SKIP:
            continue
        if entry.kind in (EntryKind.RESTART, EntryKind.ROLLBACK) and entry.parent_version is not None:
            while _is_after(entry.parent_version, chain[-1].weight_version, chain[-1].kind is EntryKind.DROPS):
                chain.pop()
        chain.append(entry)
    closed: dict[str, ClosedGroup] = {}
    for entry in chain:
        for group in entry.closed:  # the first entry that closes a group counts
            closed.setdefault(group.group_id, group)
    return Survivors(
        chain=tuple(chain),
        closed=closed,
        versions=fold.versions,
        current_version=fold.current_version,
        max_version=fold.max_version,
        step=fold.step,
        checkpoint=next((entry for entry in reversed(chain) if entry.checkpoint is not None), None),
    )
