"""The trainer's commits: only what a transaction put on `weights` and `ledger` counts.

One step, in this order: weights to a new path, checkpoint if due, one transaction {WeightsPublished, LedgerEntry}.
A crash before the transaction leaves directories that no surviving entry names. After it the step counts, until a
restart from an older checkpoint or a rollback cuts it. A step's version is the one before + 1. That of a restart or
rollback is above every version ever published, those of cut branches too (`restart.py`, `history/rollback.py`).

Directories that retention does not keep are deleted, those of earlier trainers too. A trainer may delete what lay there
before its first commit: whoever wrote that was fenced by then. It never lists directories again, since what comes later
may be of a trainer that took over.
"""

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from rollstream.bus.run import Run
from rollstream.bus.topic_watch import TopicWatch
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.known import KnownHistory, Made
from rollstream.history.passing import append_time
from rollstream.history.weight_store import WeightStore, directory_name
from rollstream.process.crash_points import crash_point
from rollstream.schemas.errors import ConfigurationError, TopicChangedError, WeightStoreError
from rollstream.schemas.ledger import (
    NON_FINITE_REASON,
    ClosedGroup,
    EntryKind,
    GroupOutcome,
    LedgerEntry,
    TrainedRollout,
)
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished
from rollstream.trainer.commits.checkpoint import Position, write_checkpoint

Save = Callable[[Path], None]

_LOG = logging.getLogger(__name__)
# Bounds the size of one record of the ledger: ids have at most 128 characters.
MOST_CLOSED_PER_ENTRY: Final = 10_000
_MARK_CHARACTERS: Final = 8


def run_mark(ledger_topic_id: str) -> str:
    """What the incarnations of all trainers of a run begin with, so that their directories are known by their names.

    Several runs may share a directory. The id of its ledger tells a run from all others, on any cluster.
    """
    return hashlib.sha256(ledger_topic_id.encode()).hexdigest()[:_MARK_CHARACTERS]


def new_incarnation(ledger_topic_id: str) -> str:
    return run_mark(ledger_topic_id) + uuid.uuid4().hex[:_MARK_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where directories go."""

    weights: WeightStore
    checkpoints: WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What an optimizer step reports to the ledger."""

    trained: Sequence[TrainedRollout]
    closed: Sequence[ClosedGroup]
    metrics: Mapping[str, float]
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A checkpoint that is due. The position is a function: the number of the new version is known only later."""

    save_state: Save
    position: Callable[[int, int], Position]
    """(weight_version, step) → the position."""


@dataclass(eq=False, kw_only=True)
class Commits:
    """Appends to the ledger. Nobody else does but an operator, who fences a trainer that still runs
    (`history/rollback.py`, `history/repair.py`).

    `incarnation`: the id of this process in its entries. `dtype`: of the published weights. `remember_seconds`: how
    long after a group closed one of its records may still come; None: for ever. `known`: the run as the trainers before
    this one left it; it takes in what is committed here.

    Every error ends the process. Raises `TopicChangedError` when made, if `known` was read from another ledger.
    """

    run: Run
    publisher: TransactionalPublisher
    stores: Stores
    known: KnownHistory
    incarnation: str
    dtype: str
    keep_versions: int
    keep_checkpoints: int
    remember_seconds: float | None

    def __post_init__(self) -> None:
        self.run.make_codecs(WEIGHTS, LEDGER)
        self._watch = TopicWatch(self.run.admin(), [self.run.topic(WEIGHTS), self.run.topic(LEDGER)])
        if self._watch.topic_id(self.run.topic(LEDGER)) != self.known.ledger_topic_id:
            raise TopicChangedError(f"topic {self.run.topic(LEDGER)} was made anew while it was read: start again")
        self._published: WeightsPublished | None = None
        self._versions_there: set[str] = set()
        self._checkpoints_there: set[str] = set()
        self._drops_since_version: list[ClosedGroup] = []
        self.weight_version = -1
        self.step = 0

    def restart(
        self, *, version: int, parent: int | None, step: int, save_weights: Save, non_finite: Sequence[str] = ()
    ) -> LedgerEntry:
        """Commit the restored weights as a new version, and close groups again: the first entry of this process."""
        started = utc_now()
        self.stores.weights.sweep()
        self.stores.checkpoints.sweep()
        mark = run_mark(self.known.ledger_topic_id)
        self._versions_there = self.stores.weights.names(mark)
        self._checkpoints_there = self.stores.checkpoints.names(mark)
        published = self._store(version, parent, step, save_weights)
        closed = tuple(
            ClosedGroup(group_id=group_id, outcome=GroupOutcome.DROPPED, reason=NON_FINITE_REASON)
            for group_id in non_finite
        )
        return self._commit((self._entry(EntryKind.RESTART, published, closed=closed, started_at=started), published))

    def optimizer_step(
        self, record: StepRecord, save_weights: Save, checkpoint: CheckpointRequest | None
    ) -> LedgerEntry:
        """Commit a step: the weights that it made, its checkpoint if one is due, and the groups that it closes."""
        published = self._store(self.weight_version + 1, self.weight_version, self.step + 1, save_weights)
        uri = self._checkpoint(checkpoint, published)
        entry = self._entry(
            EntryKind.STEP,
            published,
            checkpoint=uri,
            trained=tuple(record.trained),
            closed=tuple(record.closed),
            metrics=dict(record.metrics),
            started_at=record.started_at,
        )
        return self._commit((entry, published))

    def drops(self, closed: Sequence[ClosedGroup], metrics: Mapping[str, float]) -> LedgerEntry:
        """Close groups while no step is due, so that their credit comes back."""
        now = utc_now()
        entry = LedgerEntry(
            kind=EntryKind.DROPS,
            incarnation=self.incarnation,
            step=self.step,
            weight_version=self.weight_version,
            closed=tuple(closed),
            metrics=dict(metrics),
            started_at=now,
            finished_at=now,
        )
        self._drops_since_version.extend(closed)
        return self._commit((entry, None))

    def hand_over(self, checkpoint: CheckpointRequest) -> LedgerEntry:
        """Write a checkpoint of the current weights before the process ends, so that the next trainer repeats nothing.

        Only an entry that makes a version can name a checkpoint. So this one makes a version, with the current weights.
        It is a restart: it cuts the drops after the current version's entry. So it closes their groups once more. If
        they are too many for one entry, several restarts share them; all are in one transaction.
        Versions in brackets, (c) names a checkpoint:

            step[7](c) step[8] drops{g}                              asked to stop
            step[7](c) step[8] restart[9 ← 8](c, closed: g)          after this entry; 9's files are 8's
            step[7](c) step[8] restart[9 ← 8](c) restart[10 ← 9]     the next trainer's first entry: step 8 stays
        """
        if self._published is None:
            raise RuntimeError("hand_over comes after restart")
        started = utc_now()
        shares = list(_shares(self._drops_since_version))
        made: list[Made] = []
        for number, closed in enumerate(shares, start=1):
            version = self.weight_version + number
            published = self._published.model_copy(
                update={"weight_version": version, "parent_version": version - 1, "created_at": started}
            )
            uri = self._checkpoint(checkpoint, published) if number == len(shares) else None
            entry = self._entry(EntryKind.RESTART, published, checkpoint=uri, closed=tuple(closed), started_at=started)
            made.append((entry, published))
        return self._commit(*made)

    def _store(self, version: int, parent: int | None, step: int, save_weights: Save) -> WeightsPublished:
        stored = self.stores.weights.write(f"{version}-{self.incarnation}", save_weights)
        crash_point("weights_written")
        self._versions_there.add(directory_name(stored.uri))
        return WeightsPublished(
            model=self.run.model,
            weight_version=version,
            parent_version=parent,
            uri=stored.uri,
            files=stored.files,
            dtype=self.dtype,
            step=step,
            created_at=utc_now(),
        )

    def _checkpoint(self, request: CheckpointRequest | None, published: WeightsPublished) -> str | None:
        if request is None:
            return None
        if self.remember_seconds is not None:
            self.known.fold.forget(timedelta(seconds=self.remember_seconds))
        name = f"{published.weight_version}-{self.incarnation}"
        position = request.position(published.weight_version, published.step)
        uri = write_checkpoint(self.stores.checkpoints, name, position, self.known.snapshot(), request.save_state)
        crash_point("checkpoint_written")
        self._checkpoints_there.add(name)
        return uri

    def _entry(self, kind: EntryKind, published: WeightsPublished, **fields: object) -> LedgerEntry:
        known = {
            "incarnation": self.incarnation,
            "step": published.step,
            "weight_version": published.weight_version,
            "parent_version": published.parent_version,
            "finished_at": utc_now(),
        }
        return LedgerEntry.model_validate({"kind": kind, **known, **fields})

    def _commit(self, *made: Made) -> LedgerEntry:
        """Commit all of them in one transaction; returns the last entry.

        Raises `TopicChangedError` if a topic was made anew: an empty ledger would take the entry without a word.
        """
        self._watch.look()
        records = [self.run.out_record(WEIGHTS, published) for _, published in made if published is not None]
        records += [self.run.out_record(LEDGER, entry) for entry, _ in made]
        delivered = self.publisher.commit(records)
        on_ledger = [one for one in delivered if one.topic == self.run.topic(LEDGER)]
        self.known.add_committed(
            made,
            model=self.run.model,
            ledger_offsets=[one.offset for one in on_ledger],
            weights_offsets=[one.offset for one in delivered if one.topic == self.run.topic(WEIGHTS)],
            appended_at=append_time(max((one.timestamp_ms for one in on_ledger), default=0)),
        )
        entry, published = made[-1]
        if published is not None:
            # A restart goes back to a version's entry, so the drops before it are not cut.
            self._published = published
            self._drops_since_version.clear()
        self.weight_version, self.step = entry.weight_version, entry.step
        self._delete_old()
        return entry

    def _delete_old(self) -> None:
        """Delete the versions and checkpoints that are not kept, once a newer entry counts."""
        self.known.keep_newest(self.keep_versions)
        versions = {directory_name(uri) for uri in self.known.uris.values()}
        _delete_all_but(versions, self._versions_there, self.stores.weights.delete)
        newest = self.known.fold.checkpoints[-self.keep_checkpoints :]
        checkpoints = {directory_name(named.uri) for named in newest}
        _delete_all_but(checkpoints, self._checkpoints_there, self.stores.checkpoints.delete)


def _delete_all_but(kept: set[str], there: set[str], delete: Callable[[str], None]) -> None:
    for name in there - kept:
        there.remove(name)
        try:
            delete(name)
        except (OSError, WeightStoreError, ConfigurationError) as error:
            # Training goes on; the next trainer tries again.
            _LOG.warning("directory %s is not needed any more and can't be deleted: %s", name, error)


def _shares(closed: Sequence[ClosedGroup]) -> Iterator[Sequence[ClosedGroup]]:
    """The groups, divided so that one entry takes each part; one empty part if there are none."""
    for start in range(0, max(1, len(closed)), MOST_CLOSED_PER_ENTRY):
        yield closed[start : start + MOST_CLOSED_PER_ENTRY]
