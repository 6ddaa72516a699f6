"""Which offsets may be committed: never past the lowest unfinished one. Pure; the consumer's thread drives it."""

from collections.abc import Iterable
from typing import NamedTuple

from rollstream.bus.message import Partition


class _Unfinished(NamedTuple):
    started: float
    weight: int


class OffsetTracker:
    """One partition during one ownership: what was taken, and what is not finished yet.

    Records finish in any order; `committable` is the offset from which the next owner must read. Offsets only grow,
    with gaps where transaction markers or compaction took some.
    """

    def __init__(self) -> None:
        self._unfinished: dict[int, _Unfinished] = {}
        self._next: int | None = None
        self._weight = 0

    def start(self, offset: int, *, now: float, weight: int = 1) -> None:
        """The record at `offset` was taken; raises ValueError if offsets went back, which would lose records."""
        if self._next is not None and offset < self._next:
            raise ValueError(f"offset {offset} came after {self._next - 1}: the log was truncated or read again")
        self._unfinished[offset] = _Unfinished(now, weight)
        self._next = offset + 1
        self._weight += weight

    def finish(self, offset: int) -> int:
        """The effects of `offset` are confirmed; returns its weight, raises KeyError if it is not unfinished."""
        weight = self._unfinished.pop(offset).weight
        self._weight -= weight
        return weight

    def committable(self) -> int | None:
        """The lowest unfinished offset, or the one after the last if all are finished; None before the first."""
        return next(iter(self._unfinished), self._next)

    @property
    def num_unfinished(self) -> int:
        """Records taken and not finished."""
        return len(self._unfinished)

    @property
    def weight(self) -> int:
        """Sum of the unfinished records' weights."""
        return self._weight

    def oldest_started(self) -> float | None:
        """When the record that is unfinished for longest was taken."""
        first = next(iter(self._unfinished.values()), None)
        return None if first is None else first.started


class Assignment:
    """All partitions that this member owns: a tracker each, and an epoch that fences results of earlier ownerships.

    A partition that is lost and comes back gets a new tracker and a new epoch, so a result that was begun before
    can neither finish a record nor move a commit.
    """

    def __init__(self) -> None:
        self._trackers: dict[Partition, OffsetTracker] = {}
        self._epochs: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._last_epoch = 0
        self.num_unfinished = 0
        """Records taken and not finished, in all partitions."""
        self.weight = 0
        """Sum of those records' weights."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """What is owned now."""
        return tuple(self._trackers)

    def owns(self, partition: Partition) -> bool:
        """Whether it is owned now."""
        return partition in self._trackers

    def add(self, partitions: Iterable[Partition]) -> None:
        """These are ours from now on."""
        for partition in partitions:
            self._last_epoch += 1
            self._trackers[partition] = OffsetTracker()
            self._epochs[partition] = self._last_epoch

    def remove(self, partitions: Iterable[Partition]) -> None:
        """These are not ours any more: whatever is unfinished there can no longer count."""
        for partition in partitions:
            if tracker := self._trackers.pop(partition, None):
                self.num_unfinished -= tracker.num_unfinished
                self.weight -= tracker.weight
            self._epochs.pop(partition, None)
            self._committed.pop(partition, None)

    def start(self, partition: Partition, offset: int, *, now: float, weight: int = 1) -> int | None:
        """A record was taken; returns the epoch of this ownership, None if the partition is not ours."""
        tracker = self._trackers.get(partition)
        if tracker is None:
            return None
        tracker.start(offset, now=now, weight=weight)
        self.num_unfinished += 1
        self.weight += weight
        return self._epochs[partition]

    def finish(self, partition: Partition, offset: int, epoch: int) -> bool:
        """Finish a record, unless it was taken in an earlier ownership; says whether it counted."""
        if not self.is_current(partition, epoch):
            return False
        self.weight -= self._trackers[partition].finish(offset)
        self.num_unfinished -= 1
        return True

    def is_current(self, partition: Partition, epoch: int) -> bool:
        """Whether a record taken in `epoch` is still ours to finish."""
        return self._epochs.get(partition) == epoch

    def to_commit(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Next offset of each partition whose commit would move; of all owned ones by default."""
        wanted = self.partitions if partitions is None else [one for one in partitions if one in self._trackers]
        offsets = {partition: self._trackers[partition].committable() for partition in wanted}
        return {
            partition: offset
            for partition, offset in offsets.items()
            if offset is not None and offset != self._committed.get(partition)
        }

    def committed(self, partition: Partition, offset: int) -> None:
        """The broker confirmed this commit."""
        if partition in self._trackers:
            self._committed[partition] = offset

    def committable(self, partition: Partition) -> int | None:
        """Next offset to commit of one partition; None if nothing was taken from it."""
        tracker = self._trackers.get(partition)
        return None if tracker is None else tracker.committable()

    def num_unfinished_in(self, partitions: Iterable[Partition]) -> int:
        """Unfinished records in these partitions."""
        return sum(self._trackers[one].num_unfinished for one in partitions if one in self._trackers)

    def oldest_started(self) -> float | None:
        """When the record that is unfinished for longest was taken."""
        started = [tracker.oldest_started() for tracker in self._trackers.values()]
        return min((moment for moment in started if moment is not None), default=None)
