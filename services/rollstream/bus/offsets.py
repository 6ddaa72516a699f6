"""Which offsets a consumer may commit: never past the lowest unfinished one. Pure.

Records finish in any order, so the highest finished offset must not be committed: after a crash Kafka delivers again
only what comes after the commit, and unfinished records before it would be lost.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rollstream.bus.commit_notes import note_of
from rollstream.bus.message import Partition
from rollstream.schemas.errors import TopicChangedError

Ending = Callable[[], Awaitable[None]]
"""What is to be done once a record is committed."""


class Commit(NamedTuple):
    """What is committed of one partition: from which offset the next owner must read, and marks of what is in work."""

    offset: int
    note: str = ""
    """What `commit_notes.note_of` makes of the marks."""


@dataclass(slots=True)
class Totals:
    """Records taken and not finished, and the sum of their weights. Kept as it changes: it is asked for each record."""

    num_unfinished: int = 0
    weight: int = 0


class OffsetTracker:
    """One partition, for as long as this member owns it: which records were taken, and which are not finished.

    `committable` is the offset from which the next owner must read. Offsets only grow. They have gaps, since
    transaction markers take offsets and compaction removes records.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        """`totals`: of all trackers of an assignment, which this one changes with its own."""
        # Weights, in order of offsets, since a dict keeps the order in which keys were added: the first is the lowest.
        self._unfinished: dict[int, int] = {}
        # Since when those are handled that do not wait for it any more.
        self._begun: dict[int, float] = {}
        self._marks: dict[int, int] = {}
        # Of finished records that are not committed yet.
        self._endings: dict[int, Ending] = {}
        self._next: int | None = None
        self.is_owned = True
        """Whether the partition is owned since this tracker was made."""
        self._totals = totals or Totals()

    def start(self, offset: int, *, weight: int = 1) -> None:
        """Note that the record at `offset` was taken.

        Raises `TopicChangedError` if offsets went back: a commit of those before would pass records over.
        """
        if self._next is not None and offset < self._next:
            raise TopicChangedError(
                f"offset {offset} came after {self._next - 1}: the topic was made anew, or its log was cut short"
            )
        self._unfinished[offset] = weight
        self._next = offset + 1
        self._totals.num_unfinished += 1
        self._totals.weight += weight

    def begin(self, offset: int, *, now: float) -> None:
        """Note that the handling of `offset` began, which was taken before and is not finished."""
        self._begun[offset] = now

    def mark(self, offset: int, mark: int) -> None:
        """Mark `offset` unless it is finished; of several marks the lowest one stays."""
        if offset in self._unfinished:
            self._marks[offset] = min(mark, self._marks.get(offset, mark))

    def rest(self, offset: int) -> int:
        """Note that `offset` waits and is not handled meanwhile: it weighs nothing. Returns what it weighed."""
        weight = self._unfinished[offset]
        self._unfinished[offset] = 0
        self._begun.pop(offset, None)
        self._totals.weight -= weight
        return weight

    def resume(self, offset: int, weight: int) -> None:
        """Note that `offset`, which rested, weighs `weight` again."""
        self._unfinished[offset] = weight
        self._totals.weight += weight

    def free(self, offset: int, weight: int) -> None:
        """Note that `offset` weighs so much less, at least nothing."""
        weight = min(weight, self._unfinished.get(offset, 0))
        if weight:
            self._unfinished[offset] -= weight
            self._totals.weight -= weight

    def finish(self, offset: int, ending: Ending | None = None) -> None:
        """Note that the effects of `offset` are confirmed; raises KeyError if it is not unfinished."""
        if ending is not None:
            self._endings[offset] = ending
        self._totals.weight -= self._unfinished.pop(offset)
        self._totals.num_unfinished -= 1
        self._begun.pop(offset, None)
        self._marks.pop(offset, None)

    def committed(self, offset: int) -> list[Ending]:
        """Note that the broker has the commit of all before `offset`. Returns what is to be done now."""
        return [self._endings.pop(one) for one in [one for one in self._endings if one < offset]]

    def leave(self) -> None:
        """Note that the partition is not owned any more: its unfinished records count nowhere."""
        self.is_owned = False
        self._totals.num_unfinished -= len(self._unfinished)
        self._totals.weight -= sum(self._unfinished.values())
        self._totals = Totals()

    def committable(self) -> int | None:
        """The lowest unfinished offset, or the one after the last if all are finished; None before the first."""
        return next(iter(self._unfinished), self._next)

    def commit(self) -> Commit | None:
        """What may be committed, with the marks of what is unfinished; None before the first record."""
        offset = self.committable()
        return None if offset is None else Commit(offset, note_of(self._marks))

    @property
    def num_unfinished(self) -> int:
        return len(self._unfinished)

    def oldest_begun(self) -> float | None:
        """Since when the handling of an unfinished record lasts, the longest; None if none is handled."""
        return min(self._begun.values(), default=None)


class Assignment:
    """All partitions that this member owns, each with a tracker.

    A partition that is lost and comes back gets a new tracker. So a record that was taken before can neither finish nor
    change what is committed: it knows only the old one.
    """

    def __init__(self) -> None:
        self._totals = Totals()
        self._trackers: dict[Partition, OffsetTracker] = {}
        self._committed: dict[Partition, Commit] = {}

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._trackers)

    @property
    def num_unfinished(self) -> int:
        return self._totals.num_unfinished

    @property
    def weight(self) -> int:
        return self._totals.weight

    def owns(self, partition: Partition) -> bool:
        return partition in self._trackers

    def add(self, partitions: Collection[Partition]) -> None:
        """Note that these partitions are owned from now on."""
        self.remove(partitions)
        self._trackers |= {partition: OffsetTracker(self._totals) for partition in partitions}

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Note that these partitions are not owned any more; unfinished records there do not count any more."""
        for partition in partitions:
            if tracker := self._trackers.pop(partition, None):
                tracker.leave()
            self._committed.pop(partition, None)

    def start(self, partition: Partition, offset: int, *, weight: int = 1) -> OffsetTracker | None:
        """Note that a record was taken. Returns the partition's tracker; None if the partition is not owned."""
        tracker = self._trackers.get(partition)
        if tracker is not None:
            tracker.start(offset, weight=weight)
        return tracker

    def to_commit(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, Commit]:
        """What to commit for each partition where it differs from the last commit; by default for all owned."""
        wanted = self.partitions if partitions is None else [one for one in partitions if one in self._trackers]
        commits = {partition: self._trackers[partition].commit() for partition in wanted}
        return {
            partition: commit
            for partition, commit in commits.items()
            if commit is not None and commit != self._committed.get(partition)
        }

    def committed(self, partition: Partition, commit: Commit) -> list[Ending]:
        """Note that the broker confirmed this commit. Returns what is to be done now."""
        if partition not in self._trackers:
            return []
        self._committed[partition] = commit
        return self._trackers[partition].committed(commit.offset)

    def committable(self, partition: Partition) -> int | None:
        """Next offset to commit of one partition; None if nothing was taken from it."""
        tracker = self._trackers.get(partition)
        return None if tracker is None else tracker.committable()

    def num_unfinished_in(self, partitions: Iterable[Partition]) -> int:
        return sum(self._trackers[one].num_unfinished for one in partitions if one in self._trackers)

    def oldest_begun(self) -> float | None:
        """Since when the handling of an unfinished record lasts, the longest over all partitions."""
        begun = [tracker.oldest_begun() for tracker in self._trackers.values()]
        return min((moment for moment in begun if moment is not None), default=None)
