"""The fold of the ledger: what survives restarts and rollbacks. Pure.

The ledger is append-only and has one writer at a time (a second trainer is fenced), yet history branches: a trainer
that restores a checkpoint, or an operator who rolls back, continues from an older version. The entry they write
names that version as its parent; everything after the parent's entry is cut, and the groups closed there are open
again. Example, versions in brackets, (c) names a checkpoint:

    restart[0] step[1](c) step[2] drops step[3]     killed: the newest checkpoint is version 1's
    restart[0] step[1](c) restart[4 ← 1] step[5]    the chain after the next trainer's first step
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from rollstream.history.versions import VersionTree
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, LedgerEntry, TrainedRollout


@dataclass(frozen=True, kw_only=True)
class Survivors:
    """What counts after a whole ledger was folded.

    `chain`: the surviving entries in order. `closed`: group_id → how it closed. `versions`: all versions, cut ones
    too. `current_version`: None before the first start. `max_version`: over all entries, -1 before the first start.
    `step`: optimizer steps on the chain. `checkpoint`: the newest surviving entry that names a checkpoint.
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
        """rollout_id → where the record lies that a surviving step trained on; built when first asked for."""
        return {rollout.rollout_id: rollout for entry in self.chain for rollout in entry.trained}


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingEntry:
    """What the incremental fold keeps of a surviving entry; `closed`: the groups that it was the first to close."""

    kind: EntryKind
    weight_version: int
    step: int
    checkpoint: str | None
    closed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerChange:
    """What one entry changed: groups that it closed, groups that its cut opened again, entries that it cut."""

    closed: tuple[str, ...]
    reopened: tuple[str, ...]
    num_cut: int


class LedgerFold:
    """The same fold, one entry at a time, for weeks: an entry costs its own size, a cut the size of what it cuts.

    It keeps group ids and versions, and forgets rollouts and metrics.
    """

    def __init__(self) -> None:
        self._chain: list[SurvivingEntry] = []
        self._closed: set[str] = set()
        self._positions: dict[int, int] = {}
        self._checkpoints: list[int] = []
        self._versions = VersionTree()
        self._max_version = -1

    def add(self, entry: LedgerEntry) -> LedgerChange:
        """Fold in the next entry; raises `InconsistentLedgerError` and changes nothing if it does not fit."""
        self._check(entry)
        cut: list[SurvivingEntry] = []
        if entry.kind in (EntryKind.RESTART, EntryKind.ROLLBACK) and entry.parent_version is not None:
            cut = self._cut(self._positions[entry.parent_version] + 1)
        if entry.kind is not EntryKind.DROPS:
            self._versions.add(entry.weight_version, entry.parent_version, is_step=entry.kind is EntryKind.STEP)
            self._positions[entry.weight_version] = len(self._chain)
            self._max_version = entry.weight_version
        if entry.checkpoint is not None:
            self._checkpoints.append(len(self._chain))
        closed = tuple(dict.fromkeys(g.group_id for g in entry.closed if g.group_id not in self._closed))
        self._closed.update(closed)
        self._chain.append(
            SurvivingEntry(
                kind=entry.kind,
                weight_version=entry.weight_version,
                step=entry.step,
                checkpoint=entry.checkpoint,
                closed=closed,
            )
        )
        reopened = tuple(group for gone in cut for group in gone.closed)
        return LedgerChange(closed=closed, reopened=reopened, num_cut=len(cut))

    @property
    def chain(self) -> Sequence[SurvivingEntry]:
        """The surviving entries in order; live."""
        return self._chain

    @property
    def closed(self) -> Set[str]:
        """Ids of the groups that are closed on the surviving branch; live."""
        return self._closed

    @property
    def versions(self) -> VersionTree:
        """All versions, those of cut entries too; live."""
        return self._versions

    @property
    def current_version(self) -> int | None:
        """Version at the end of the chain; None before the first start."""
        return self._chain[-1].weight_version if self._chain else None

    @property
    def max_version(self) -> int:
        """Largest version of all entries, cut ones too; -1 before the first start."""
        return self._max_version

    @property
    def step(self) -> int:
        """Optimizer steps on the chain."""
        return self._chain[-1].step if self._chain else 0

    @property
    def checkpoint(self) -> SurvivingEntry | None:
        """The newest surviving entry that names a checkpoint."""
        return self._chain[self._checkpoints[-1]] if self._checkpoints else None

    def _check(self, entry: LedgerEntry) -> None:
        what = f"ledger entry {entry.kind.value} of version {entry.weight_version} by {entry.incarnation}"
        if entry.kind is EntryKind.UNKNOWN:
            raise InconsistentLedgerError(
                f"{what}: its kind is unknown here; a newer rollstream wrote it, update this one"
            )
        if entry.kind is EntryKind.DROPS:
            if entry.weight_version != self.current_version:
                raise InconsistentLedgerError(f"{what}: drops belong to the current version {self.current_version}")
            if entry.checkpoint is not None:
                # A restart names a version, so it would cut these drops, whose groups the checkpoint has behind it.
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
        """Shorten the chain to `length` entries; returns the rest."""
        cut = self._chain[length:]
        del self._chain[length:]
        for gone in cut:
            self._closed.difference_update(gone.closed)
            if gone.kind is not EntryKind.DROPS:
                del self._positions[gone.weight_version]
        while self._checkpoints and self._checkpoints[-1] >= length:
            self._checkpoints.pop()
        return cut


def surviving(entries: Iterable[LedgerEntry]) -> Survivors:
    """Fold a whole ledger from its first entry, keeping the surviving ones; raises `InconsistentLedgerError`."""
    fold = LedgerFold()
    chain: list[LedgerEntry] = []
    for entry in entries:
        change = fold.add(entry)
        del chain[len(chain) - change.num_cut :]
        chain.append(entry)
    closed: dict[str, ClosedGroup] = {}
    for entry in chain:
        for group in entry.closed:
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
