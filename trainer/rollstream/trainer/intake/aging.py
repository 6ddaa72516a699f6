"""Which incomplete groups will never be complete: those that every stage before the trainer is done with. Pure.

A group ages once three facts hold, one after the other. The generators committed its prompt, so its samples are in
`rollouts`. The scorers committed what `rollouts` held then, so its samples are in `scored`, or in dead-letters. The
trainer has read `scored` to its end since. Time in which the trainer trains, is behind or stands still does not
count, so no group is lost because a stage stood still. Example, a group whose prompt is `prompts`/0 @ 7, bound 60 s:

    generators committed 7 of `prompts`/0                   it may still be generated: no clock runs
    generators committed 8, `rollouts`/0 ends at 40         its samples lie below 40, or nowhere
    scorers committed 40 of `rollouts`/0                    they lie in `scored`, or in dead-letters: the clock starts
    60 s of polls that found `scored` read to its end       what is missing now never comes: lost
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollstream.trainer.intake.groups import Group

# Far above the time between two polls of a process that runs.
_LONGEST_TICK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """How far the stages before the trainer are: partition number → next offset. The broker was asked in this order."""

    prompts_done: Mapping[int, int] = field(default_factory=dict)
    """Of `prompts`, committed by the generators."""
    rollouts_end: Mapping[int, int] = field(default_factory=dict)
    """The end of `rollouts`."""
    rollouts_done: Mapping[int, int] = field(default_factory=dict)
    """Of `rollouts`, committed by the scorers."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A group that the generators are done with."""

    rollouts_end: Mapping[int, int]
    """What the scorers must reach, by partition number."""
    ages_from: float | None = None
    """When they were first seen to have reached it, on the clock of `Aging`."""


class Aging:
    """Ages incomplete groups, on a clock that runs only while the trainer is at the end of `scored`."""

    def __init__(self, bound_seconds: float) -> None:
        self._bound = bound_seconds
        self._clock = 0.0
        self._last: float | None = None
        self._waiting: dict[str, _Waiting] = {}

    def tick(self, now: float, *, at_end: bool) -> None:
        """Note after each poll whether everything was read; the time between two polls counts if both say so."""
        if at_end and self._last is not None:
            # If this process was suspended between the two polls, that time must not age groups.
            self._clock += min(now - self._last, _LONGEST_TICK_SECONDS)
        self._last = now if at_end else None

    def interrupt(self) -> None:
        """Note that the trainer stops reading for now: the time until its next poll does not count."""
        self._last = None

    def observe(self, upstream: Upstream, incomplete: Iterable[Group], *, prompts_read: bool) -> None:
        """Take in how far the other stages are; `prompts_read`: `prompts` is read to its end.

        Once `prompts` is read, a group without a prompt also counts as generated: its prompt has expired.
        """
        waiting: dict[str, _Waiting] = {}
        for group in incomplete:
            known = self._waiting.get(group.group_id)
            if known is None and _is_generated(group, upstream, prompts_read):
                known = _Waiting(rollouts_end=upstream.rollouts_end)
            if known is not None:
                waiting[group.group_id] = known
                if known.ages_from is None and _reached(upstream.rollouts_done, known.rollouts_end):
                    known.ages_from = self._clock
        self._waiting = waiting

    def lost(self, incomplete: Iterable[Group]) -> list[Group]:
        """The groups that aged for longer than the bound."""
        return [group for group in incomplete if self._is_past(group.group_id)]

    def _is_past(self, group_id: str) -> bool:
        known = self._waiting.get(group_id)
        return known is not None and known.ages_from is not None and self._clock - known.ages_from >= self._bound


def _is_generated(group: Group, upstream: Upstream, prompts_read: bool) -> bool:
    if group.prompt_place is None:
        return prompts_read
    (_, number), offset = group.prompt_place
    return upstream.prompts_done.get(number, 0) > offset


def _reached(done: Mapping[int, int], end: Mapping[int, int]) -> bool:
    return all(done.get(number, 0) >= offset for number, offset in end.items())
