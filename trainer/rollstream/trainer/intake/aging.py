"""What the other stages say of incomplete groups: which will never be complete, and how old the others are. Pure.

Lost are those that every stage before the trainer is done with. Four facts must hold, one after the other. The
generators committed a group's prompt, so its samples are in `rollouts`. The scorers committed what `rollouts` held
then, so its samples are in `scored`, or in dead-letters. A time of grace passed. The trainer read what `scored` held
after it. Each fact compares a position with an end that was noted before, so none of them needs a topic without
traffic. Time in which the trainer stands still hardly counts. Example, a
group whose prompt is `prompts`/0 @ 7, grace 60 s:

    generators committed 7 of `prompts`/0                   it may still be generated
    generators committed 8, `rollouts`/0 ends at 40         its samples lie below 40, or nowhere
    scorers committed 40 of `rollouts`/0                    they lie in `scored`, or in dead-letters: the grace begins
    60 s later, `scored`/0 ends at 90                       what came late, e.g. replayed dead letters, lies below 90
    the trainer is at 90 of `scored`/0                      what is missing now never comes: lost

If `rollouts` is deleted and made anew, its old ends are no ends there: what was noted of it is noted anew. Groups
whose samples lay in the deleted topic alone are lost then.

How old a group is, its samples tell only once they came. Of one whose samples are all long none comes before the group
is too old, so generators say beside what they commit with which weight version they began each prompt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollstream.trainer.intake.groups import Group

# Far above the time between two polls of a process that runs and does not train.
_LONGEST_TICK_SECONDS = 2.0

Offsets = Mapping[int, int]
"""Partition number → next offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """How far the stages before the trainer are. The broker was asked in this order, `prompts_end` aside."""

    prompts_end: Offsets = field(default_factory=dict)
    prompts_done: Offsets = field(default_factory=dict)
    """Of `prompts`, committed by the generators."""
    rollouts_end: Offsets = field(default_factory=dict)
    rollouts_done: Offsets = field(default_factory=dict)
    """Of `rollouts`, committed by the scorers."""
    scored_end: Offsets = field(default_factory=dict)
    begun: Mapping[int, Offsets] = field(default_factory=dict)
    """Of `prompts`: partition number → offset of a prompt in work → oldest weight version that sampled of it. The
    generators say so beside what they committed; nobody checks it."""
    rollouts_id: str = ""
    """Of the topic `rollouts` whose offsets these are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadUpTo:
    """How far the trainer has read."""

    prompts: Offsets = field(default_factory=dict)
    scored: Offsets = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """An incomplete group, and what must be reached next; None: not noted yet."""

    prompts_end: Offsets
    """By the trainer, if it does not know the group's prompt."""
    rollouts_end: Offsets | None = None
    """By the scorers. It is noted once the generators are done with the group."""
    scored_from: float | None = None
    """When the scorers were first seen there, on the clock of `Aging`."""
    scored_end: Offsets | None = None
    """By the trainer."""
    begun_with: int | None = None
    """The oldest weight version in it. It stays when the generators are done: its samples are on their way."""

    def forget_rollouts(self) -> None:
        """Begin again with what follows from offsets of `rollouts`: it is another topic now."""
        self.rollouts_end = self.scored_from = self.scored_end = None


class Aging:
    """Finds the groups that are lost; its clock runs while the trainer does and the broker answers.

    It also keeps with which weight version each group was begun."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        # A trainer that trains all the time polls once a step, so longer steps than a poll must count a little.
        self._longest_tick = max(_LONGEST_TICK_SECONDS, grace_seconds / 10)
        self._clock = 0.0
        self._last: float | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._rollouts_id = ""

    def tick(self, now: float, *, is_fresh: bool) -> None:
        """Note after each poll whether the broker answered lately; the time since the poll before counts if it did."""
        if is_fresh and self._last is not None:
            # If this process was suspended between the two polls, that time must not age groups.
            self._clock += min(now - self._last, self._longest_tick)
        self._last = now if is_fresh else None

    def observe(self, upstream: Upstream, incomplete: Iterable[Group], read: ReadUpTo) -> None:
        """Take in a new answer about the other stages; `read`: how far the trainer is now."""
        if upstream.rollouts_id != self._rollouts_id:
            self._rollouts_id = upstream.rollouts_id
            for known in self._waiting.values():
                known.forget_rollouts()
        waiting: dict[str, _Waiting] = {}
        for group in incomplete:
            known = self._waiting.get(group.group_id) or _Waiting(prompts_end=upstream.prompts_end)
            waiting[group.group_id] = known
            known.begun_with = _begun_with(group, upstream, known.begun_with)
            if known.rollouts_end is None and _is_generated(group, known, upstream, read):
                known.rollouts_end = upstream.rollouts_end
            if known.scored_from is None and _reached(upstream.rollouts_done, known.rollouts_end):
                known.scored_from = self._clock
            if known.scored_end is None and self._is_grace_over(known):
                known.scored_end = upstream.scored_end
        self._waiting = waiting

    def lost(self, incomplete: Iterable[Group], read: ReadUpTo) -> list[Group]:
        """The groups for which all four facts hold."""
        return [
            group
            for group in incomplete
            if (known := self._waiting.get(group.group_id)) is not None and _reached(read.scored, known.scored_end)
        ]

    def begun_with(self, group: Group) -> int | None:
        """The weight version with which generators say that they began the group; None if they have not said so."""
        known = self._waiting.get(group.group_id)
        return None if known is None else known.begun_with

    def _is_grace_over(self, known: _Waiting) -> bool:
        return known.scored_from is not None and self._clock - known.scored_from >= self._grace


def _begun_with(group: Group, upstream: Upstream, before: int | None) -> int | None:
    if group.prompt_place is None:
        return before
    (_, number), offset = group.prompt_place
    return upstream.begun.get(number, {}).get(offset, before)


def _is_generated(group: Group, known: _Waiting, upstream: Upstream, read: ReadUpTo) -> bool:
    """Whether the generators are done with it. A prompt that does not come up to the noted end has expired."""
    if group.prompt_place is None:
        return _reached(read.prompts, known.prompts_end)
    (_, number), offset = group.prompt_place
    return upstream.prompts_done.get(number, 0) > offset


def _reached(done: Offsets, end: Offsets | None) -> bool:
    return end is not None and all(done.get(number, 0) >= offset for number, offset in end.items())
