"""How many optimizer steps an answer's weights are behind, by the ledger from the window's start on.

It is a first judgement, which saves a place in the share: the trainer has the last word. Of what it can't tell, because
the ledger before the window's start would say it, it says nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from rollstream.history.versions import VersionRange, VersionTree
from rollstream.schemas.ledger import EntryKind, LedgerEntry

_MOST_RANGES: Final = 1000
"""Starts of trainers and rollbacks that are remembered; beyond them all is forgotten."""


class SeenVersions:
    """The versions that the ledger names, in a form that the store can keep."""

    def __init__(self, saved: Sequence[Sequence[Any]]) -> None:
        """`saved`: what `state` gave before."""
        self._tree = VersionTree([VersionRange(*one) for one in saved])
        self._newest: int | None = self._tree.ranges[-1].last if self._tree.ranges else None

    def add(self, entry: LedgerEntry) -> bool:
        """Take in the next entry that counts; whether it made a version."""
        if entry.kind not in (EntryKind.STEP, EntryKind.RESTART, EntryKind.ROLLBACK):
            return False
        if len(self._tree.ranges) > _MOST_RANGES:
            self._tree = VersionTree()
        version, parent = entry.weight_version, entry.parent_version
        self._tree.add(version, parent if parent in self._tree else None, is_step=entry.kind is EntryKind.STEP)
        self._newest = version
        return True

    def lag(self, version: int) -> int | None:
        """Steps between this version and the newest; None if that is not known here."""
        return None if self._newest is None else self._tree.lag(version, self._newest)

    def state(self) -> list[VersionRange]:
        """What to save; JSON makes lists of it."""
        return self._tree.ranges
