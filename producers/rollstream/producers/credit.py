"""Credit: how many more groups a producer may submit. Pure.

A group is outstanding if this producer submitted it and it is not closed on the surviving branch. Credit is the share
minus the outstanding groups. They are kept as a set of ids: a group that is submitted twice counts once, and one whose
closing is cut later is outstanding again. A sum of events would drift.

This bounds policy lag if the shares of all producers add up to at most (max_policy_lag + 1) x groups_per_step. Then
fewer groups than that are open when a prompt is submitted: in order of arrival at most max_policy_lag steps come before
its own. `shares.py` adds up the shares and warns. What is too late all the same, since it came out of order or was
sampled by a generator that is behind, is dropped by the trainer (`admission.py`).

Only the newest entries of the ledger are remembered, and of them only this producer's groups. That is enough for what a
restarted trainer cuts. A `CreditMark` makes the same credit again without the entries before. A rollback may go back
further: then the credit is made again from the whole ledger.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry

_MOST_REMEMBERED: Final = 20_000
"""Most entries and closed groups that are remembered. The groups travel in `ProducerProgress`: 33 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditMark:
    """What makes a credit again: its groups that are open, and those that the ledger closes after `ledger_offset`."""

    ledger_offset: int
    open_groups: tuple[str, ...]
    recently_closed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClosingEntry:
    """A surviving entry. `closed`: the own groups that it closed."""

    offset: int
    version: int
    makes_version: bool
    has_checkpoint: bool
    closed: tuple[str, ...]

    @property
    def size(self) -> int:
        return 1 + len(self.closed)


class Credit:
    """Counts the open groups of one producer against its share.

    It takes in the ledger's entries in order, from the mark's offset on; without a mark from the first entry on.
    """

    def __init__(self, share: int, mark: CreditMark | None = None) -> None:
        self.share = share
        """Most groups that may be outstanding."""
        # Those closed lately are open until the entries that close them are read again: a restart may have cut these.
        self._outstanding = set() if mark is None else {*mark.open_groups, *mark.recently_closed}
        self.is_whole = mark is None
        """Whether every entry of the ledger is remembered."""
        self._start = 0 if mark is None else mark.ledger_offset
        self._chain: list[_ClosingEntry] = []
        self._size = 0

    @property
    def num_outstanding(self) -> int:
        """Own groups that are not closed; after a cut they may be more than the share, until enough close again."""
        return len(self._outstanding)

    @property
    def free(self) -> int:
        """How many groups may be submitted now."""
        return max(0, self.share - len(self._outstanding))

    def submitted(self, group_id: str) -> None:
        """Count a group as this producer's; submitting it again while it is open changes nothing."""
        self._outstanding.add(group_id)

    @property
    def outstanding(self) -> frozenset[str]:
        """Own groups that are not closed."""
        return frozenset(self._outstanding)

    def disown(self, groups: Iterable[str]) -> None:
        """Forget groups that turn out to be nobody's."""
        self._outstanding.difference_update(groups)

    def fold_in(self, entry: LedgerEntry, offset: int) -> tuple[str, ...]:
        """Take in the ledger's next entry; returns the own groups that it closes.

        If it goes back further than is remembered, or contradicts the entries before it, raises
        `InconsistentLedgerError` and changes nothing.
        """
        if entry.kind is EntryKind.UNKNOWN:
            raise InconsistentLedgerError(
                f"{_what(entry, offset)}: its kind is unknown here; a newer rollstream wrote it, update this one"
            )
        # The first one may have any parent: the mark holds what the entries before it left.
        if self._chain:
            self._cut(self._position_of_parent(entry, offset) + 1)
        named = dict.fromkeys(group.group_id for group in entry.closed)
        closed = tuple(group_id for group_id in named if group_id in self._outstanding)
        self._outstanding.difference_update(closed)
        link = _ClosingEntry(
            offset=offset,
            version=entry.weight_version,
            makes_version=entry.kind is not EntryKind.DROPS,
            has_checkpoint=entry.checkpoint is not None,
            closed=closed,
        )
        self._chain.append(link)
        self._size += link.size
        return closed

    def forget(self) -> None:
        """Forget the oldest entries beyond the bound."""
        count = 0
        while self._size > _MOST_REMEMBERED and count < len(self._chain) - 1:
            self._size -= self._chain[count].size
            count += 1
        if count:
            del self._chain[:count]
            self.is_whole = False

    def anew(self) -> "Credit":
        """A credit of the same groups, all open, that takes in the ledger from its first entry on."""
        credit = Credit(self.share)
        # Of these groups nobody knows any more which entry closed them; the whole ledger follows and says it.
        credit._outstanding.update(self._outstanding, *(link.closed for link in self._chain))
        return credit

    def mark(self) -> CreditMark:
        """The mark to go on from later."""
        # What entries after the base closed: whoever goes on from the mark reads these entries again.
        recent = (group_id for link in self._chain[self._base + 1 :] for group_id in link.closed)
        return CreditMark(
            ledger_offset=self.ledger_offset,
            open_groups=tuple(sorted(self._outstanding)),
            recently_closed=tuple(recent),
        )

    @property
    def ledger_offset(self) -> int:
        """The entry that a mark begins with. What it closed is closed for good, as far as a restart can tell."""
        return self._chain[self._base].offset if self._chain else self._start

    @property
    def _base(self) -> int:
        """Position of the second newest entry with a checkpoint; 0 if there are fewer.

        A trainer restores the newest checkpoint. If that was written while steps went on, it is of a version a little
        older than the entry that names it.
        """
        newest_first = range(len(self._chain) - 1, -1, -1)
        found = (position for position in newest_first if self._chain[position].has_checkpoint)
        next(found, None)
        return next(found, 0)

    def _position_of_parent(self, entry: LedgerEntry, offset: int) -> int:
        """Where the chain holds the entry that `entry` comes after."""
        newest = len(self._chain) - 1
        if entry.kind in (EntryKind.STEP, EntryKind.DROPS):
            parent = entry.weight_version if entry.kind is EntryKind.DROPS else entry.parent_version
            found = [newest] if self._chain[newest].version == parent else []
        else:
            parent = entry.parent_version
            found = [n for n, link in enumerate(self._chain) if link.makes_version and link.version == parent]
        if not found:
            raise InconsistentLedgerError(
                f"{_what(entry, offset)}: it comes after version {parent}, which is not among the {len(self._chain)} "
                f"surviving entries from offset {self._chain[0].offset} on"
            )
        return found[-1]

    def _cut(self, length: int) -> None:
        """Shorten the chain to `length` entries; the groups that the others closed are open again."""
        for link in self._chain[length:]:
            self._outstanding.update(link.closed)
            self._size -= link.size
        del self._chain[length:]


def _what(entry: LedgerEntry, offset: int) -> str:
    return f"ledger entry {entry.kind.value} of version {entry.weight_version} at offset {offset}"
