"""What a trainer knows of its run: the fold of its ledger, where its newest versions lie, and where to read on.

A trainer keeps it up to date with what it commits, and puts a snapshot of it into each checkpoint. The next trainer
goes on from the newest snapshot, so a start costs what happened since the last checkpoint. A snapshot holds the ledger
before the entry that names its checkpoint. So it is right even if that entry was never committed, or was cut.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from rollstream.bus.run import Run
from rollstream.history.ledger import FoldSnapshot, LedgerFold
from rollstream.history.milestones import Milestones
from rollstream.history.passing import Passing, passed_over, refused
from rollstream.history.versions import LARGEST_VERSION
from rollstream.schemas.errors import ConfigurationError, InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished

_LOG = logging.getLogger(__name__)
# Only the newest steps say how long rollouts and steps take now.
_LATEST_STEPS: Final = 20
_TIMES: Final = ("rollout_seconds_p99", "step_seconds")

Made = tuple[LedgerEntry, WeightsPublished | None]
"""An entry, and the version that it makes."""


class HistorySnapshot(BaseModel):
    """A `KnownHistory` as a checkpoint holds it. The topic's id tells whether it is of the ledger that is there now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_topic_id: str
    ledger_offset: int = Field(ge=0, description="Next offset to read of ledger")
    weights_offset: int = Field(ge=0, description="Next offset to read of weights")
    newest_version: int
    uris: dict[int, str] = Field(description="Weight version → where it lies, of the newest surviving ones")
    step_times: tuple[dict[str, float], ...] = Field(description="How long the latest steps and their rollouts took")
    fold: FoldSnapshot
    milestones: Milestones

    @property
    def offsets(self) -> dict[str, int]:
        """Where to read on, by topic."""
        return {LEDGER.name: self.ledger_offset, WEIGHTS.name: self.weights_offset}


@dataclass(slots=True)
class _Cursor:
    """How far a topic is known: the next offset to read, and that of this process's next record if nobody else writes.

    They differ after a transaction: its marker takes an offset too.
    """

    read_on: int
    own_next: int

    def is_next(self, offsets: Sequence[int]) -> bool:
        """Whether these are the offsets of the next records, without anything before or between them."""
        return list(offsets) == list(range(self.own_next, self.own_next + len(offsets)))

    def pass_transaction(self, offsets: Sequence[int]) -> None:
        """Go on after the records of a transaction; without any it left no marker either."""
        if offsets:
            self.read_on, self.own_next = offsets[-1] + 1, offsets[-1] + 2


class KnownHistory:
    """`newest_version`: the largest version of any model or entry, -1 before the first.

    `uris`: weight version → where it lies, at least for the newest surviving versions of the run's model.
    """

    def __init__(self, ledger_topic_id: str, snapshot: HistorySnapshot | None = None) -> None:
        """Begin before the first record, or where the snapshot was taken."""
        self.ledger_topic_id = ledger_topic_id
        self.fold = LedgerFold(snapshot.fold if snapshot else None)
        self.newest_version = snapshot.newest_version if snapshot else -1
        self.uris = dict(snapshot.uris) if snapshot else {}
        self.step_times = deque(snapshot.step_times if snapshot else (), maxlen=_LATEST_STEPS)
        self.milestones = snapshot.milestones if snapshot else Milestones()
        self._ledger, self._weights = _Cursor(0, 0), _Cursor(0, 0)
        self._frozen: HistorySnapshot | None = None

    @property
    def ledger_offset(self) -> int:
        """Next offset to read of the ledger."""
        return self._ledger.read_on

    def is_read_up_to(self, ends: Mapping[str, int]) -> None:
        """Note that both topics were read up to these offsets, by topic."""
        self._ledger, self._weights = (_Cursor(ends[topic.name], ends[topic.name]) for topic in (LEDGER, WEIGHTS))

    def add_weights(self, published: WeightsPublished, *, model: str) -> None:
        """Add the next record of `weights`; `model` is the run's."""
        if published.weight_version > LARGEST_VERSION:
            _LOG.warning("version %d is passed over: no trainer counts that far", published.weight_version)
            return
        self.newest_version = max(self.newest_version, published.weight_version)
        if published.model == model:
            self.uris[published.weight_version] = published.uri

    def add_entry(self, entry: LedgerEntry, appended_at: datetime | None = None) -> None:
        """Add the next entry of `ledger`, see `LedgerFold.add`; raises `InconsistentLedgerError`."""
        self.fold.add(entry, appended_at)
        self.newest_version = max(self.newest_version, entry.weight_version)
        self.milestones = self.milestones.after(entry)
        if entry.kind is EntryKind.STEP:
            self.step_times.append({name: entry.metrics[name] for name in _TIMES if name in entry.metrics})

    def add_committed(
        self,
        made: Sequence[Made],
        *,
        model: str,
        ledger_offsets: Sequence[int],
        weights_offsets: Sequence[int],
        appended_at: datetime | None = None,
    ) -> None:
        """Add one transaction of this process, where its records lie and the broker's time of its last entry.

        After a record of anybody else snapshots stay as before it: the next trainer must judge it.
        """
        if not (self._ledger.is_next(ledger_offsets) and self._weights.is_next(weights_offsets)):
            _LOG.error("somebody else wrote to ledger or weights: see `rollstream ledger check` before the next start")
            self._frozen = self.snapshot()
        for entry, published in made:
            if published is not None:
                self.add_weights(published, model=model)
            self.add_entry(entry, appended_at)
        self._ledger.pass_transaction(ledger_offsets)
        self._weights.pass_transaction(weights_offsets)

    def keep_newest(self, num_versions: int) -> None:
        """Forget where versions lie, but for the newest surviving ones."""
        newest = islice(self.fold.surviving_versions(), num_versions)
        self.uris = {version: self.uris[version] for version in newest if version in self.uris}

    def snapshot(self) -> HistorySnapshot:
        """What a later trainer of the same ledger goes on from."""
        return self._frozen or HistorySnapshot(
            ledger_topic_id=self.ledger_topic_id,
            ledger_offset=self._ledger.read_on,
            weights_offset=self._weights.read_on,
            newest_version=self.newest_version,
            uris=self.uris,
            step_times=tuple(self.step_times),
            fold=self.fold.snapshot(),
            milestones=self.milestones,
        )


def read_known(run: Run, ledger_topic_id: str, snapshot: HistorySnapshot | None) -> KnownHistory:
    """Read on from the snapshot to the ends of `weights` and `ledger`; without one, or if it does not do, everything.

    Raises `BrokerError`, and `InconsistentLedgerError` for a record that can't be read or contradicts others.
    """
    if snapshot is not None:
        try:
            return _read_on(run, ledger_topic_id, snapshot)
        except (InconsistentLedgerError, ConfigurationError) as error:
            # A broker that lost the newest records, e.g. in a power failure, has no offset to read on from.
            _LOG.warning("the ledger is read from its start, since a checkpoint's snapshot does not do: %s", error)
    return _read_on(run, ledger_topic_id, None)


def _read_on(run: Run, ledger_topic_id: str, snapshot: HistorySnapshot | None) -> KnownHistory:
    def take_in(passing: Passing) -> KnownHistory:
        known = KnownHistory(ledger_topic_id, snapshot)
        for _, weights in passing.weights():
            known.add_weights(weights, model=run.model)
        for _ in passing.entries(known.add_entry):
            pass
        known.is_read_up_to(passing.ends)
        if any(place.offset < passing.starts.get(place.topic, 0) for place in passing.named):
            raise InconsistentLedgerError("an entry says to pass over records that are part of the snapshot")
        return known

    known, passing = passed_over(run, take_in, starts=snapshot.offsets if snapshot else None)
    if passing.problems:
        raise refused(run, passing.problems[0], len(passing.problems))
    return known
