"""Which incomplete groups will never be completed: every stage before the trainer is done with them. Pure.

A group ages once a chain of facts holds: the generators committed its prompt (so its samples are in `rollouts`), the
scorers committed what `rollouts` held then (so they are in `scored`, or in dead-letters), and the trainer has read
`scored` to its end since. Time in which the trainer trains, is behind or stands still doesn't count, so a long stop
of any stage loses nothing. Example, a group whose prompt is `prompts`/0 @ 7, bound 60 s:

    generators committed 7 of `prompts`/0                   it may still be generated: no clock runs
    generators committed 8, `rollouts`/0 ends at 40         its samples lie below 40, or nowhere
    scorers committed 40 of `rollouts`/0                    theirs lie in `scored`, or in dead-letters: the clock starts
    60 s of polls that found `scored` read to its end       whatever is missing now never comes: lost
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollstream.trainer.intake.groups import Group

_LONGEST_TICK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Next offsets that the stages before the trainer have committed, and the end of `rollouts`, asked in this order.

    All keyed by partition number: `prompts` committed by the generators, end of `rollouts`, `rollouts` committed by
    the scorers.
    """

    prompts_done: Mapping[int, int] = field(default_factory=dict)
    rollouts_end: Mapping[int, int] = field(default_factory=dict)
    rollouts_done: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """A group that the generators are done with: what the scorers must reach, and since when they have."""

    rollouts_end: Mapping[int, int]
    ages_from: float | None = None


class Aging:
    """Ages incomplete groups on a clock that only runs while the trainer is at the end of `scored`."""

    def __init__(self, bound_seconds: float) -> None:
        self._bound = bound_seconds
        self._clock = 0.0
        self._last: float | None = None
        self._waiting: dict[str, _Waiting] = {}

    def tick(self, now: float, *, at_end: bool) -> None:
        """Say after each poll whether everything was read; time counts between two polls that both say so."""
        if at_end and self._last is not None:
            # A process that was stopped in between must not age groups by the time that it slept.
            self._clock += min(now - self._last, _LONGEST_TICK_SECONDS)
        self._last = now if at_end else None

    def interrupt(self) -> None:
        """The trainer turns to something else than reading."""
        self._last = None

    def observe(self, upstream: Upstream, incomplete: Iterable[Group], *, prompts_read: bool) -> None:
        """Take in how far the other stages are; `prompts_read`: `prompts` is read to its end.

        A group without a prompt is waiting once `prompts` is read: its prompt is no longer in the log.
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
        """The groups that are past the bound."""
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
