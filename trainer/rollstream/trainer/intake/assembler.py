"""Puts groups together from prompts and scored samples, in whatever order and however often they arrive. Pure.

A group opens with its prompt or with its first sample. It is complete when all its samples are there. It stays open
until it is trained on or dropped. What arrives for a closed group is a duplicate.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime

from rollstream.bus.message import Partition
from rollstream.bus.offsets import OffsetTracker
from rollstream.process.tracing.context import TraceContext
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import rollout_id
from rollstream.schemas.ledger import ClosedGroup, GroupOutcome
from rollstream.schemas.prompt import PromptSubmitted, Purpose, out_of_bounds
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.groups import DroppedGroup, DropReason, Group, LogPlace, PlacedSample


class Assembler:
    """Open groups, the ids of closed ones, and the offsets to read from after a restart.

    The caller takes complete groups and drops from it, and closes what it trained on. A drop must be in the ledger
    before a checkpoint, or together with it, if the checkpoint's offsets are above the group's: the next trainer won't
    read its records again.
    """

    def __init__(
        self,
        *,
        closed: Container[str],
        offsets: Mapping[Partition, int],
        incomplete_bytes: int,
        is_forgotten: Callable[[datetime], bool] | None = None,
    ) -> None:
        """`closed`: the groups that the ledger names as closed; a view that changes as entries are committed.

        `is_forgotten`: whether the ledger may have closed a group that is not in `closed` any more, by the time at
        which its prompt was submitted; without it no group was forgotten.
        """
        self._closed_in_ledger = closed
        self._is_forgotten = is_forgotten
        self._closed: set[str] = set()
        self._open: dict[str, Group] = {}
        self._completed: list[Group] = []
        self._drops: list[DroppedGroup] = []
        self._start = dict(offsets)
        self._trackers: dict[Partition, OffsetTracker] = {}
        self._bytes_bound = incomplete_bytes
        self.incomplete_bytes = 0
        """Encoded size of the samples of incomplete groups."""
        self.num_duplicates = 0

    @property
    def incomplete(self) -> Iterable[Group]:
        """Open groups that lack samples, oldest first."""
        return (group for group in self._open.values() if not group.is_complete)

    @property
    def num_open(self) -> int:
        """Groups that are not closed."""
        return len(self._open)

    def is_closed(self, group_id: str) -> bool:
        """Whether the group is trained on or dropped, on the surviving branch or since."""
        return group_id in self._closed or group_id in self._closed_in_ledger

    def expect(self, group_ids: Iterable[str]) -> None:
        """Open groups whose prompts may have expired, so that they close too; what comes of them tells their size."""
        for group_id in group_ids:
            if not self.is_closed(group_id):
                self._open.setdefault(group_id, Group(group_id=group_id, content_hash="", group_size=0))

    def skip(self, place: LogPlace) -> None:
        """Pass over a record that belongs to no group."""
        tracker = self._tracker(place.partition)
        tracker.start(place.offset)
        tracker.finish(place.offset)

    def committed(self, group_ids: Iterable[str]) -> None:
        """Note that the ledger names these groups as closed."""
        self._closed.difference_update(group_ids)

    def add_prompt(self, prompt: PromptSubmitted, place: LogPlace, trace: TraceContext | None = None) -> None:
        """Open the prompt's group."""
        group = self._group_for(prompt, prompt.group_id, prompt.group_size, place, trace)
        if group is not None and group.prompt_place is None:
            group.prompt_place = place

    def add_sample(
        self, scored: RolloutScored, place: LogPlace, num_bytes: int, trace: TraceContext | None = None
    ) -> None:
        """Put a sample into its group; of two attempts a completed one is kept, else the first."""
        rollout = scored.rollout
        group = self._group_for(rollout.prompt, rollout.group_id, rollout.group_size, place, trace)
        if group is None:
            return
        if not _belongs(rollout, group):
            self.drop(group.group_id, DropReason.CONFLICT)
            return
        sample = PlacedSample(scored=scored, place=place, num_bytes=num_bytes, trace=trace)
        known = group.samples.get(rollout.sample_index)
        if known is None:
            self._fill(group, sample)
        # Also in a complete group, which waits for a step: it counts until the group is closed.
        elif sample.is_completed and not known.is_completed:
            if not group.is_complete:
                self.incomplete_bytes += num_bytes - known.num_bytes
            group.samples[rollout.sample_index] = sample
        else:
            self.num_duplicates += 1

    def take_completed(self) -> list[Group]:
        """Groups that became complete since the last call, in that order, unless they are closed already."""
        completed = [group for group in self._completed if group.group_id in self._open]
        self._completed.clear()
        return completed

    def take_drops(self, limit: int) -> tuple[DroppedGroup, ...]:
        """Groups dropped since the last call, oldest first, at most `limit`."""
        taken = tuple(self._drops[:limit])
        del self._drops[: len(taken)]
        return taken

    @property
    def num_drops(self) -> int:
        """Drops that are not taken yet."""
        return len(self._drops)

    def drop(self, group_id: str, reason: DropReason) -> None:
        """Close an open group without training on it."""
        self._drops.append(DroppedGroup(group=self._close(group_id), reason=reason))

    def close_trained(self, group_ids: Iterable[str]) -> tuple[ClosedGroup, ...]:
        """Close the groups of a step; returns what the ledger says of them."""
        closed = []
        for group_id in group_ids:
            mean = self._close(group_id).reward_mean
            closed.append(ClosedGroup(group_id=group_id, outcome=GroupOutcome.TRAINED, reward_mean=mean))
        return tuple(closed)

    def offsets(self) -> dict[Partition, int]:
        """Per partition the lowest offset of a record whose group is open; if there is none, the next one to read."""
        reached = {partition: tracker.committable() for partition, tracker in self._trackers.items()}
        return self._start | {partition: offset for partition, offset in reached.items() if offset is not None}

    def open_group_ids(self) -> tuple[str, ...]:
        return tuple(self._open)

    def _group_for(
        self, prompt: PromptSubmitted, group_id: str, group_size: int, place: LogPlace, trace: TraceContext | None
    ) -> Group | None:
        """The open group that this record belongs to, opened if it is new; None if the record changes nothing."""
        if self.is_closed(group_id):
            # A group that is not for training closes at its first record, so its later samples are no duplicates.
            self.num_duplicates += prompt.purpose is Purpose.TRAIN
            self.skip(place)
            return None
        content_hash = prompt.content_hash()
        group = self._open.get(group_id)
        is_new = group is None
        if group is None:
            group = Group(group_id=group_id, content_hash=content_hash, group_size=group_size, trace=trace)
            self._open[group_id] = group
        elif not group.content_hash:
            # The group was only expected (`expect`).
            group.content_hash, group.group_size = content_hash, group_size
        # Before anything may drop the group: closing it finishes all of its records.
        self._tracker(place.partition).start(place.offset)
        group.places.append(place)
        if (group.content_hash, group.group_size) != (content_hash, group_size):
            self.drop(group_id, DropReason.CONFLICT)
            return None
        if prompt.purpose is not Purpose.TRAIN:
            self.drop(group_id, DropReason.NOT_FOR_TRAINING)
            return None
        if is_new and self._is_forgotten is not None and self._is_forgotten(prompt.submitted_at):
            # It may have been trained on, and must not be trained on twice.
            self.drop(group_id, DropReason.EXPIRED)
            return None
        refused = out_of_bounds(prompt)
        if refused is not None:
            # At once: of too large a group, samples do not come.
            is_sampling = refused.code is FailureCode.UNSUPPORTED_SAMPLING
            self.drop(group_id, DropReason.UNSUPPORTED_SAMPLING if is_sampling else DropReason.FAILED)
            return None
        return group

    def _fill(self, group: Group, sample: PlacedSample) -> None:
        group.samples[sample.scored.rollout.sample_index] = sample
        self.incomplete_bytes += sample.num_bytes
        if group.is_complete:
            self.incomplete_bytes -= group.num_bytes
            self._completed.append(group)
        while self.incomplete_bytes > self._bytes_bound:
            oldest = next(group for group in self.incomplete if group.samples)
            self.drop(oldest.group_id, DropReason.OVERFLOW)

    def _close(self, group_id: str) -> Group:
        group = self._open.pop(group_id)
        self._closed.add(group_id)
        if not group.is_complete:
            self.incomplete_bytes -= group.num_bytes
        for place in group.places:
            self._tracker(place.partition).finish(place.offset)
        return group

    def _tracker(self, partition: Partition) -> OffsetTracker:
        return self._trackers.setdefault(partition, OffsetTracker())


def _belongs(rollout: RolloutGenerated, group: Group) -> bool:
    """Whether the sample's index, size and ids fit its group; the caller compared its prompt before."""
    return (
        rollout.sample_index < group.group_size
        and rollout.group_size == rollout.prompt.group_size
        and rollout.group_id == rollout.prompt.group_id
        and rollout.rollout_id == rollout_id(rollout.group_id, rollout.sample_index)
    )
