"""Reads a run's history from `weights` and `ledger`: all weight versions, and the surviving branch."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollstream.bus.run import Run
from rollstream.history.ledger import LedgerFold, NamedCheckpoint
from rollstream.history.passing import LedgerProblem, Passing, RecordPlace, passed_over, refused
from rollstream.history.versions import LARGEST_VERSION
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.weights import WeightsPublished

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run's weight versions, oldest first, and its surviving branch (`fold`).

    `published`: version → its record, for the run's model. `entries`: version → the entry of the ledger that made it,
    without its rollouts and groups. `newest_version`: the largest version of any model or entry, -1 before the first.
    `problems`: the records that had to be passed over. `skipped`: those that an entry says to pass over.
    """

    published: Mapping[int, WeightsPublished]
    entries: Mapping[int, LedgerEntry]
    fold: LedgerFold
    newest_version: int
    problems: tuple[LedgerProblem, ...]
    skipped: frozenset[RecordPlace]

    @property
    def surviving(self) -> set[int]:
        return set(self.fold.surviving_versions())

    def checkpoint_at(self, version: int) -> NamedCheckpoint | None:
        """The checkpoint that a trainer restores after a rollback to a surviving `version`; None: the initial model."""
        return next((named for named in reversed(self.fold.checkpoints) if named.weight_version <= version), None)


def read(run: Run) -> History:
    """Read both topics to their ends.

    Raises `BrokerError`, and `InconsistentLedgerError` if an entry contradicts earlier ones. A record that can't be
    read is logged and passed over; so is a version on `weights` above `LARGEST_VERSION`.
    """
    history = examine(run)
    for problem in history.problems:
        if isinstance(problem.error, InconsistentLedgerError):
            raise refused(run, problem, len(history.problems)) from problem.error
        _LOG.warning("passed over %s: %s", problem.place, problem.error)
    return history


def examine(run: Run, *, skipped: Iterable[RecordPlace] = ()) -> History:
    """The same, with every problem in `problems` instead of an error; `skipped` are passed over besides."""
    history, _ = passed_over(run, _history, skipped=frozenset(skipped))
    return history


def _history(passing: Passing) -> History:
    published: dict[int, WeightsPublished] = {}
    entries: dict[int, LedgerEntry] = {}
    fold = LedgerFold()
    newest_version = -1
    for _, weights in passing.weights():
        if weights.weight_version > LARGEST_VERSION:
            _LOG.warning("version %d is passed over: no trainer counts that far", weights.weight_version)
            continue
        newest_version = max(newest_version, weights.weight_version)
        if weights.model == passing.run.model:
            published[weights.weight_version] = weights
    for _, entry in passing.entries(fold.add):
        if entry.kind not in (EntryKind.DROPS, EntryKind.SKIP):
            entries[entry.weight_version] = entry.model_copy(update={"trained": (), "closed": ()})
    return History(
        published=published,
        entries=entries,
        fold=fold,
        newest_version=max(newest_version, fold.max_version),
        problems=tuple(passing.problems),
        skipped=passing.skipped,
    )
