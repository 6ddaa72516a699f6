"""Computes the surviving branch of the ledger: what still counts after restarts and rollbacks. Pure.

The ledger is append-only and has one writer at a time (a new trainer fences the one before). But its history branches:
a trainer that restores a checkpoint, or an operator who rolls back, goes on from an older weight version. Their entry
names that version as its parent. All entries after the parent's are cut; the groups that they closed are open again.

Example, with versions in brackets; (c) means that the entry names a checkpoint:

    restart[0] step[1](c) step[2] drops step[3]     killed: the newest checkpoint is version 1's
    restart[0] step[1](c) restart[4 ← 1] step[5]    the chain after the next trainer's first step
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from rollstream.history.versions import VersionTree
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingEntry:
    """What `LedgerFold` keeps of a surviving entry.

    `closed`: the groups that no surviving entry before it closed. `non_finite`: those of them of whose step an update
    was skipped, since its loss or gradient was not finite.
    """

    kind: EntryKind
    weight_version: int
    step: int
    checkpoint: str | None
    closed: tuple[str, ...]
    non_finite: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerChange:
    """What one entry changed: the groups that it closed, those that it opened again, and how many entries it cut."""

    closed: tuple[str, ...]
    reopened: tuple[str, ...]
    num_cut: int


class LedgerFold:
    """Computes the surviving branch one entry at a time, for processes that read the ledger for weeks.

    An entry costs time for its own size, a cut for the size of what it cuts. Group ids and versions are kept, rollouts
    and metrics are not.
    """

    def __init__(self) -> None:
        self._chain: list[SurvivingEntry] = []
        self._closed: set[str] = set()
        # Positions in the chain: of the entry that made each surviving version, and of the entries with a checkpoint.
        self._positions: dict[int, int] = {}
        self._checkpoints: list[int] = []
        self._versions = VersionTree()
        self._max_version = -1

    def add(self, entry: LedgerEntry) -> LedgerChange:
        """Add the next entry. If it contradicts earlier ones, raises `InconsistentLedgerError` and changes nothing.

        An entry of kind skip belongs to no branch, and changes nothing either: readers look at it (`passing.py`).
        """
        self._check(entry)
        if entry.kind is EntryKind.SKIP:
            return LedgerChange(closed=(), reopened=(), num_cut=0)
        cut: list[SurvivingEntry] = []
        if entry.kind in (EntryKind.RESTART, EntryKind.ROLLBACK) and entry.parent_version is not None:
            cut = self._cut(self._positions[entry.parent_version] + 1)
        if entry.kind is not EntryKind.DROPS:
            self._versions.add(entry.weight_version, entry.parent_version, is_step=entry.kind is EntryKind.STEP)
            self._positions[entry.weight_version] = len(self._chain)
            self._max_version = entry.weight_version
        if entry.checkpoint is not None:
            self._checkpoints.append(len(self._chain))
        newly = {group.group_id: group for group in entry.closed if group.group_id not in self._closed}
        closed = tuple(newly)
        self._closed.update(closed)
        self._chain.append(
            SurvivingEntry(
                kind=entry.kind,
                weight_version=entry.weight_version,
                step=entry.step,
                checkpoint=entry.checkpoint,
                closed=closed,
                non_finite=tuple(group_id for group_id, group in newly.items() if _was_non_finite(group, entry)),
            )
        )
        reopened = tuple(group for entry_cut in cut for group in entry_cut.closed)
        return LedgerChange(closed=closed, reopened=reopened, num_cut=len(cut))

    @property
    def chain(self) -> Sequence[SurvivingEntry]:
        """The surviving entries in order; a view that later entries change."""
        return self._chain

    @property
    def closed(self) -> Set[str]:
        """Ids of the groups that are closed on the surviving branch; a view that later entries change."""
        return self._closed

    @property
    def versions(self) -> VersionTree:
        """All versions, those of cut entries too; later entries add to it."""
        return self._versions

    @property
    def current_version(self) -> int | None:
        """Weight version at the end of the chain; None before the first start."""
        return self._chain[-1].weight_version if self._chain else None

    @property
    def max_version(self) -> int:
        """Largest weight version of all entries, those of cut entries too; -1 before the first start."""
        return self._max_version

    @property
    def step(self) -> int:
        """Optimizer steps on the chain."""
        return self._chain[-1].step if self._chain else 0

    @property
    def checkpoint(self) -> SurvivingEntry | None:
        """The newest surviving entry that names a checkpoint."""
        return self._chain[self._checkpoints[-1]] if self._checkpoints else None

    def non_finite_after(self, version: int) -> tuple[str, ...]:
        """Groups of non-finite steps, out of the surviving entries after the one that made `version`."""
        later = self._chain[self._positions[version] + 1 :]
        return tuple(group for entry in later for group in entry.non_finite)

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
        if entry.weight_version <= self._max_version:
            raise InconsistentLedgerError(f"{what}: versions only grow, and {self._max_version} is there already")
        self._check_parent(entry, what)

    def _check_parent(self, entry: LedgerEntry, what: str) -> None:
        parent = entry.parent_version
        if parent is None:
            if self._chain or entry.kind is not EntryKind.RESTART:
                raise InconsistentLedgerError(f"{what}: only the first restart of a run has no parent version")
        elif parent not in self._positions:
            raise InconsistentLedgerError(f"{what}: its parent, version {parent}, is not on the surviving branch")
        elif entry.kind is EntryKind.STEP and parent != self.current_version:
            raise InconsistentLedgerError(f"{what}: a step's parent must be {self.current_version}, not {parent}")

    def _cut(self, length: int) -> list[SurvivingEntry]:
        """Shorten the chain to `length` entries; returns the entries that were cut."""
        cut = self._chain[length:]
        del self._chain[length:]
        for entry in cut:
            self._closed.difference_update(entry.closed)
            if entry.kind is not EntryKind.DROPS:
                del self._positions[entry.weight_version]
        while self._checkpoints and self._checkpoints[-1] >= length:
            self._checkpoints.pop()
        return cut


def _was_non_finite(group: ClosedGroup, entry: LedgerEntry) -> bool:
    is_trained = group.outcome is GroupOutcome.TRAINED
    return group.reason == NON_FINITE_REASON or (is_trained and entry.metrics.get(UPDATES_SKIPPED, 0.0) > 0)


def surviving(entries: Iterable[LedgerEntry]) -> Survivors:
    """The surviving branch of a whole ledger, from its first entry on; raises `InconsistentLedgerError`."""
    fold = LedgerFold()
    chain: list[LedgerEntry] = []
    for entry in entries:
        change = fold.add(entry)
        del chain[len(chain) - change.num_cut :]
        if entry.kind is not EntryKind.SKIP:
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
