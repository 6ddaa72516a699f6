"""The trainer's commits: only what a transaction put on `weights` and `ledger` counts.

One step, in this order: weights to a new path, checkpoint if due, one transaction {WeightsPublished, LedgerEntry}.
A crash before the transaction leaves directories that no surviving entry names. After it the step counts, until a
restart from an older checkpoint or a rollback cuts it. A step's version is the one before + 1. That of a restart or
rollback is above every version ever published, those of cut branches too (`restart.py`, `history/rollback.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.weight_store import WeightStore
from rollstream.process.crash_points import crash_point
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
from rollstream.trainer.commits.checkpoint import CheckpointStore, Position

Save = Callable[[Path], None]
Made = tuple[LedgerEntry, WeightsPublished | None]
"""An entry, and the version that it makes."""

# Bounds the size of one record of the ledger: ids have at most 128 characters.
MOST_CLOSED_PER_ENTRY: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """What is the same for every commit of one process; `dtype` of the published weights."""

    incarnation: str
    dtype: str
    keep_versions: int
    keep_checkpoints: int


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


class Commits:
    """Appends to the ledger. Nobody else does but `history/rollback.py`, which fences a trainer that still runs.

    Every error ends the process.
    """

    def __init__(
        self,
        settings: CommitSettings,
        publisher: TransactionalPublisher,
        weights: WeightStore,
        checkpoints: CheckpointStore,
        run: Run,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._weights = weights
        self._checkpoints = checkpoints
        self._run = run
        run.make_codecs(WEIGHTS, LEDGER)
        self._published: WeightsPublished | None = None
        self._own_uris: list[str] = []
        self._drops_since_version: list[ClosedGroup] = []
        self.weight_version = -1
        self.step = 0

    def restart(
        self, *, version: int, parent: int | None, step: int, save_weights: Save, non_finite: Sequence[str] = ()
    ) -> LedgerEntry:
        """Commit the restored weights as a new version, and close groups again: the first entry of this process."""
        started = utc_now()
        self._weights.sweep()
        self._checkpoints.sweep()
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
            incarnation=self._settings.incarnation,
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
        stored = self._weights.write(version, self._settings.incarnation, save_weights)
        crash_point("weights_written")
        self._own_uris.append(stored.uri)
        return WeightsPublished(
            model=self._run.model,
            weight_version=version,
            parent_version=parent,
            uri=stored.uri,
            files=stored.files,
            dtype=self._settings.dtype,
            step=step,
            created_at=utc_now(),
        )

    def _checkpoint(self, request: CheckpointRequest | None, published: WeightsPublished) -> str | None:
        if request is None:
            return None
        uri = self._checkpoints.write(request.position(published.weight_version, published.step), request.save_state)
        crash_point("checkpoint_written")
        return uri

    def _entry(self, kind: EntryKind, published: WeightsPublished, **fields: object) -> LedgerEntry:
        known = {
            "incarnation": self._settings.incarnation,
            "step": published.step,
            "weight_version": published.weight_version,
            "parent_version": published.parent_version,
            "finished_at": utc_now(),
        }
        return LedgerEntry.model_validate({"kind": kind, **known, **fields})

    def _commit(self, *made: Made) -> LedgerEntry:
        """Commit all of them in one transaction; returns the last entry."""
        records = [self._run.out_record(WEIGHTS, published) for _, published in made if published is not None]
        records += [self._run.out_record(LEDGER, entry) for entry, _ in made]
        self._publisher.commit(records)
        entry, published = made[-1]
        if published is not None:
            self._published = published
            self._drops_since_version.clear()
            self.weight_version, self.step = entry.weight_version, entry.step
            self._delete_old()
        return entry

    def _delete_old(self) -> None:
        """Delete versions and checkpoints beyond what is kept: only own ones, and only after a newer one counts."""
        while len(self._own_uris) > self._settings.keep_versions:
            self._weights.delete(self._own_uris.pop(0), self._settings.incarnation)
        self._checkpoints.prune(self._settings.keep_checkpoints)


def _shares(closed: Sequence[ClosedGroup]) -> Iterator[Sequence[ClosedGroup]]:
    """The groups, divided so that one entry takes each part; one empty part if there are none."""
    for start in range(0, max(1, len(closed)), MOST_CLOSED_PER_ENTRY):
        yield closed[start : start + MOST_CLOSED_PER_ENTRY]
