"""Which entries of the ledger survive, by their offsets. It takes the entries one by one, and keeps 17 bytes of each.

A writer that goes on for long keeps the newest ones alone: their rows say of older ones whether they survive.

`history/ledger.py` says what a restart or a rollback cuts, and which entries contradict others; those never count.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollstream.history.ledger import FoldSnapshot, LedgerFold
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER


class BranchState(BaseModel):
    """What a `Branch` goes on from. `survivors`: offset, weight version and whether it is drops, of each entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    next_offset: int
    known_from: int = Field(description="Of entries before this offset their rows say whether they survive")
    skipped: frozenset[int]
    survivors: tuple[tuple[int, int, bool], ...]
    fold: FoldSnapshot


class Branch:
    """The surviving branch up to some offset. `skipped`: offsets of entries that a repair says to pass over.

    `is_cut_short`: an entry went back behind what is known here; then a branch of all entries must be made.
    """

    def __init__(self, skipped: frozenset[int] = frozenset(), state: BranchState | None = None) -> None:
        """Begin before the first entry, or where the state was taken."""
        survivors = state.survivors if state else ()
        self._skipped = state.skipped if state else skipped
        self._fold = LedgerFold(state.fold if state else None)
        self._offsets = array("q", [offset for offset, _, _ in survivors])
        self._versions = array("q", [version for _, version, _ in survivors])
        self._drops = bytearray(is_drops for _, _, is_drops in survivors)
        self._changed_at = array("q")
        self._changed_from = array("q")
        self.known_from = state.known_from if state else 0
        self.next_offset = state.next_offset if state else 0
        self.is_cut_short = False

    def add(self, offset: int, entry: LedgerEntry) -> frozenset[int]:
        """Add the next entry. Returns what it says to pass over and was not: then a new branch must be made."""
        self.next_offset = offset + 1
        if offset in self._skipped:
            return frozenset()
        try:
            self._fold.add(entry.model_copy(update=_unneeded(entry)))
        except InconsistentLedgerError:
            return frozenset()
        if entry.kind is EntryKind.SKIP:
            named = frozenset(record.offset for record in entry.skipped if record.topic == LEDGER.name)
            if named:
                # A restart that does not count any more may have cut any entry.
                self._note(offset, 0)
            return named - self._skipped
        if entry.kind in (EntryKind.RESTART, EntryKind.ROLLBACK) and entry.parent_version is not None:
            self._cut(offset, entry.parent_version)
        self._offsets.append(offset)
        self._versions.append(entry.weight_version)
        self._drops.append(entry.kind is EntryKind.DROPS)
        return frozenset()

    def survives(self, offset: int, recorded: bool = False) -> bool:
        """Whether the entry at this offset of `ledger` is on the branch. `recorded`: what its row says."""
        if offset < self.known_from:
            return recorded
        index = bisect_left(self._offsets, offset)
        return index < len(self._offsets) and self._offsets[index] == offset

    def has_changed(self, *, known_until: int, newest: int) -> bool:
        """Whether an entry at `known_until` or later changed if some entry up to `newest` survives."""
        # Of the changes after `known_until` the first one kept reaches back furthest.
        index = bisect_left(self._changed_at, known_until)
        return index < len(self._changed_at) and self._changed_from[index] <= newest

    def forget(self, num_kept: int) -> None:
        """Keep the newest survivors alone, and no changes: once every row says what they changed."""
        excess = len(self._offsets) - num_kept
        if excess > 0:
            for kept in (self._offsets, self._versions, self._drops):
                del kept[:excess]
            self.known_from = self._offsets[0]
        self._changed_at, self._changed_from = array("q"), array("q")

    def state(self) -> BranchState:
        """What a branch goes on from, without what has changed."""
        survivors = zip(self._offsets, self._versions, map(bool, self._drops), strict=True)
        return BranchState(
            next_offset=self.next_offset,
            known_from=self.known_from,
            skipped=self._skipped,
            survivors=tuple(survivors),
            fold=self._fold.snapshot(),
        )

    def _cut(self, offset: int, parent: int) -> None:
        """Go back to the entry that made version `parent`."""
        first = None
        while self._offsets and (self._versions[-1] > parent or (self._versions[-1] == parent and self._drops[-1])):
            first = self._offsets.pop()
            self._versions.pop()
            self._drops.pop()
        if not self._offsets:
            # Only a branch that has forgotten entries can run out of them: the parent survives.
            self.is_cut_short = True
        if first is not None:
            self._note(offset, first)

    def _note(self, offset: int, first: int) -> None:
        """Note that the entry at `offset` changed whether those from `first` on survive."""
        # What an older change reached, and a newer one does not, matters to those who know neither.
        while self._changed_from and self._changed_from[-1] >= first:
            self._changed_at.pop()
            self._changed_from.pop()
        self._changed_at.append(offset)
        self._changed_from.append(first)


def _unneeded(entry: LedgerEntry) -> Mapping[str, Any]:
    """What the fold would keep of each entry, and is not asked for here; drops with a checkpoint contradict."""
    unneeded: dict[str, Any] = {"closed": (), "trained": ()}
    return unneeded if entry.kind is EntryKind.DROPS else unneeded | {"checkpoint": None}
