"""Which entries of the ledger survive, by their offsets. It takes the entries one by one, and keeps 17 bytes of each.

`history/ledger.py` says what a restart or a rollback cuts, and which entries contradict others; those never count.
"""

from array import array
from bisect import bisect_left

from rollstream.history.ledger import LedgerFold
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER


class Branch:
    """The surviving branch up to some offset. `skipped`: offsets of entries that a repair says to pass over."""

    def __init__(self, skipped: frozenset[int] = frozenset()) -> None:
        self._skipped = skipped
        self._fold = LedgerFold()
        self._offsets = array("q")
        self._versions = array("q")
        self._drops = bytearray()
        self._changed_at = array("q")
        self._changed_from = array("q")
        self.next_offset = 0

    def add(self, offset: int, entry: LedgerEntry) -> frozenset[int]:
        """Add the next entry. Returns what it says to pass over and was not: then a new branch must be made."""
        self.next_offset = offset + 1
        if offset in self._skipped:
            return frozenset()
        try:
            self._fold.add(entry.model_copy(update={"closed": (), "trained": ()}))
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

    def survives(self, offset: int) -> bool:
        """Whether the entry at this offset of `ledger` is on the branch."""
        index = bisect_left(self._offsets, offset)
        return index < len(self._offsets) and self._offsets[index] == offset

    def has_changed(self, *, known_until: int, newest: int) -> bool:
        """Whether an entry at `known_until` or later changed if some entry up to `newest` survives."""
        # Of the changes after `known_until` the first one kept reaches back furthest.
        index = bisect_left(self._changed_at, known_until)
        return index < len(self._changed_at) and self._changed_from[index] <= newest

    def _cut(self, offset: int, parent: int) -> None:
        """Go back to the entry that made version `parent`."""
        first = None
        while self._versions[-1] > parent or (self._versions[-1] == parent and self._drops[-1]):
            first = self._offsets.pop()
            self._versions.pop()
            self._drops.pop()
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
