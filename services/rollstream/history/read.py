"""Reads a run's history from `weights` and `ledger`: all weight versions, and the surviving branch."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from rollstream.bus.run import Run
from rollstream.history.ledger import LedgerFold
from rollstream.history.versions import LARGEST_VERSION
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished

V = TypeVar("V")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run's weight versions, oldest first, and its surviving branch (`fold`).

    `published`: version → its record, for the run's model. `entries`: version → the ledger entry that made it, without
    its rollouts and groups. `newest_version`: the largest version of any model or entry, -1 before the first.
    """

    published: Mapping[int, WeightsPublished]
    entries: Mapping[int, LedgerEntry]
    fold: LedgerFold
    newest_version: int

    @property
    def surviving(self) -> set[int]:
        """The versions on the surviving branch."""
        return {link.weight_version for link in self.fold.chain}

    def checkpoint_at(self, version: int) -> str | None:
        """The checkpoint that a trainer restores after a rollback to a surviving `version`; None: the initial model."""
        older = [link.checkpoint for link in self.fold.chain if link.weight_version <= version]
        return next((checkpoint for checkpoint in reversed(older) if checkpoint is not None), None)


def read(run: Run, *, newest: int | None = None, strict: bool = False) -> History:
    """Read both topics to their ends. Records are kept for the `newest` versions (None: for all).

    With `strict` an unreadable record raises `BrokenWorldError`; otherwise it is skipped. A version on `weights` above
    `LARGEST_VERSION` is always skipped. Raises `BrokerError` and `InconsistentLedgerError`.
    """
    published: dict[int, WeightsPublished] = {}
    entries: dict[int, LedgerEntry] = {}
    fold = LedgerFold()
    newest_version = -1
    for weights in run.read(WEIGHTS, strict=strict):
        if weights.weight_version > LARGEST_VERSION:
            _LOG.warning("version %d is passed over: no trainer counts that far", weights.weight_version)
            continue
        newest_version = max(newest_version, weights.weight_version)
        if weights.model == run.model:
            _keep(published, weights.weight_version, weights, newest)
    for entry in run.read(LEDGER, strict=strict):
        fold.add(entry)
        if entry.kind is not EntryKind.DROPS:
            _keep(entries, entry.weight_version, entry.model_copy(update={"trained": (), "closed": ()}), newest)
    return History(
        published=published, entries=entries, fold=fold, newest_version=max(newest_version, fold.max_version)
    )


def _keep(kept: dict[int, V], version: int, value: V, newest: int | None) -> None:
    kept[version] = value
    if newest is not None and len(kept) > newest:
        del kept[next(iter(kept))]  # the first key is the oldest version
