"""The commit never passes the lowest unfinished offset, whatever the order, revoke, loss and re-assignment."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollstream.bus.commit_notes import marks_in
from rollstream.bus.message import Partition
from rollstream.bus.offsets import Assignment, Commit, Ending, OffsetTracker
from rollstream.schemas.errors import TopicChangedError

PARTITIONS: list[Partition] = [("prompts", 0), ("prompts", 1), ("eval-prompts", 0)]
WEIGHTS = dict(zip(PARTITIONS, (1, 5, 7), strict=True))


def test_nothing_is_committable_before_the_first_record() -> None:
    assert OffsetTracker().committable() is None


def test_a_gap_is_committed_only_when_it_closes() -> None:
    tracker = OffsetTracker()
    for offset in (10, 11, 13):  # 12 is a transaction marker
        tracker.start(offset)
    tracker.finish(11)
    tracker.finish(13)
    assert tracker.committable() == 10
    tracker.finish(10)
    assert tracker.committable() == 14


def test_the_time_of_a_record_counts_from_when_its_handling_begins() -> None:
    assignment = Assignment()
    assignment.add(PARTITIONS[:2])
    one, other = (started(assignment, partition, 0, 1) for partition in PARTITIONS[:2])
    assert assignment.oldest_begun() is None
    one.begin(1, now=5.0)
    other.begin(0, now=7.0)
    assert assignment.oldest_begun() == 5.0
    one.finish(1)
    assert assignment.oldest_begun() == 7.0
    other.finish(0)
    assert assignment.oldest_begun() is None
    one.begin(0, now=1.0)
    assignment.remove(PARTITIONS[:1])
    assert assignment.oldest_begun() is None


def test_offsets_that_go_back_are_refused() -> None:
    tracker = OffsetTracker()
    tracker.start(5)
    with pytest.raises(TopicChangedError, match="offset 5 came after 5"):
        tracker.start(5)


def test_a_confirmed_commit_is_not_repeated() -> None:
    assignment = Assignment()
    assignment.add(PARTITIONS[:1])
    assignment.start(PARTITIONS[0], 4)
    assert assignment.to_commit() == {PARTITIONS[0]: Commit(4)}
    assignment.committed(PARTITIONS[0], Commit(4))
    assert assignment.to_commit() == {}


def test_a_mark_is_committed_although_no_record_has_ended_and_leaves_with_its_record() -> None:
    assignment = Assignment()
    assignment.add(PARTITIONS[:1])
    tracker = started(assignment, PARTITIONS[0], 4, 5)
    assignment.committed(PARTITIONS[0], Commit(4))
    for mark in (8, 7, 9):
        tracker.mark(5, mark)
    commit = assignment.to_commit()[PARTITIONS[0]]
    assert (commit.offset, marks_in(commit.note)) == (4, {5: 7})
    assignment.committed(PARTITIONS[0], commit)
    assert assignment.to_commit() == {}
    tracker.finish(5)
    tracker.mark(5, 6)
    assert assignment.to_commit() == {PARTITIONS[0]: Commit(4)}


def test_the_ending_of_a_record_comes_once_it_is_committed_and_not_if_its_partition_is_lost() -> None:
    assignment = Assignment()
    assignment.add(PARTITIONS[:1])
    tracker = started(assignment, PARTITIONS[0], 4, 5, 6)
    ended: list[int] = []

    def ending(offset: int) -> Ending:
        async def end() -> None:
            ended.append(offset)

        return end

    def commit() -> list[int]:
        """The offsets whose endings come with the next commit."""
        [(partition, found)] = assignment.to_commit().items()
        before = len(ended)
        for one in assignment.committed(partition, found):
            asyncio.run(one())  # type: ignore[arg-type]
        return ended[before:]

    tracker.finish(5, ending(5))
    assert commit() == [], "4 is committed, which is not finished"
    tracker.finish(4, ending(4))
    tracker.finish(6)
    assert sorted(commit()) == [4, 5]
    tracker = started(assignment, PARTITIONS[0], 7)
    tracker.finish(7, ending(7))
    [(partition, found)] = assignment.to_commit().items()
    assignment.remove([partition])
    assert assignment.committed(partition, found) == []


def started(assignment: Assignment, partition: Partition, *offsets: int) -> OffsetTracker:
    """The tracker of a partition, after records of it were taken."""
    [tracker] = {assignment.start(partition, offset) for offset in offsets}
    assert tracker is not None
    return tracker


class Member(RuleBasedStateMachine):
    """One member, its group and its broker: `effects` holds what was really done, `broker` what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.assignment = Assignment()
        self.broker = dict.fromkeys(PARTITIONS, 0)
        self.effects: dict[Partition, set[int]] = {partition: set() for partition in PARTITIONS}
        self.taken: list[tuple[Partition, int, OffsetTracker]] = []
        self.freed: Counter[tuple[Partition, int, OffsetTracker]] = Counter()
        self.positions: dict[Partition, int] = {}
        self.log: dict[Partition, list[int]] = {partition: [] for partition in PARTITIONS}

    @rule(partition=st.sampled_from(PARTITIONS), gap=st.integers(0, 2))
    def append(self, partition: Partition, gap: int) -> None:
        last = self.log[partition][-1] if self.log[partition] else -1
        self.log[partition].append(last + 1 + gap)

    @rule(partition=st.sampled_from(PARTITIONS))
    def assign(self, partition: Partition) -> None:
        if partition not in self.positions:
            self.assignment.add([partition])
            self.positions[partition] = self.broker[partition]

    @precondition(lambda self: self.positions)
    @rule(choice=st.randoms(use_true_random=False))
    def take(self, choice: random.Random) -> None:
        partition = choice.choice(sorted(self.positions))
        offset = next((one for one in self.log[partition] if one >= self.positions[partition]), None)
        if offset is not None:
            tracker = self.assignment.start(partition, offset, weight=WEIGHTS[partition])
            assert tracker is not None
            self.taken.append((partition, offset, tracker))
            self.positions[partition] = offset + 1

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 10_000), weight=st.integers(0, 4))
    def free_of_any_even_a_late_one(self, index: int, weight: int) -> None:
        one = self.taken[index % len(self.taken)]
        self.freed[one] += weight
        one[2].free(one[1], weight)

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 10_000))
    def finish_any_even_a_late_one(self, index: int) -> None:
        partition, offset, tracker = self.taken.pop(index % len(self.taken))
        self.effects[partition].add(offset)
        tracker.finish(offset)

    @rule()
    def commit(self) -> None:
        for partition, commit in self.assignment.to_commit().items():
            self.broker[partition] = commit.offset
            self.assignment.committed(partition, commit)

    @rule(partition=st.sampled_from(PARTITIONS))
    def revoke(self, partition: Partition) -> None:
        for one, commit in self.assignment.to_commit([partition]).items():
            self.broker[one] = commit.offset
        self.lose(partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def lose(self, partition: Partition) -> None:
        self.assignment.remove([partition])
        self.positions.pop(partition, None)

    @invariant()
    def no_commit_passes_a_record_whose_effects_are_missing(self) -> None:
        for partition, committed in self.broker.items():
            passed = {offset for offset in self.log[partition] if offset < committed}
            assert passed <= self.effects[partition]

    @invariant()
    def what_is_committable_is_the_lowest_unfinished(self) -> None:
        for partition in self.positions:
            unfinished = [offset for one, offset, tracker in self.taken if one == partition and tracker.is_owned]
            if unfinished:
                assert self.assignment.committable(partition) == min(unfinished)

    @invariant()
    def the_running_totals_are_those_of_what_is_unfinished(self) -> None:
        unfinished = [one for one in self.taken if one[2].is_owned]
        assert self.assignment.num_unfinished == len(unfinished) == self.assignment.num_unfinished_in(PARTITIONS)
        assert self.assignment.weight == sum(max(0, WEIGHTS[one[0]] - self.freed[one]) for one in unfinished)

    @invariant()
    def commits_never_move_back(self) -> None:
        for partition, commit in self.assignment.to_commit().items():
            assert commit.offset >= self.broker[partition]


Member.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestMember = Member.TestCase
