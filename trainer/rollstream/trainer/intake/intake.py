"""Which groups make the next step, and which are dropped: admits complete groups. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rollstream.bus.message import Partition
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.aging import Aging, ReadUpTo, Upstream
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import DropReason, Group
from rollstream.trainer.intake.ones import compared, flat
from rollstream.trainer.intake.waiting import MOST_ALONE, Waiting

LagOf = Callable[[int], int | None]
"""Weight version → its policy lag in optimizer steps; None for a version that was never published."""
_REMEMBERED_LENGTHS: Final = 1024


@dataclass(slots=True)
class LagByLength:
    """Counts groups dropped as too old by their length, compared with that of the latest groups.

    The bound counts the oldest span, so it drops long samples first: this shows how much. Answers to clients are left
    out: they become old while they wait for feedback, whatever their length.
    """

    _lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_LENGTHS))
    _too_old: Counter[int] = field(default_factory=Counter)

    def note(self, group: Group) -> None:
        """Take in a group that became complete."""
        if group.is_served:
            return
        self._lengths.append(_length(group))

    def note_too_old(self, group: Group) -> None:
        """Take in that a group, noted before, is dropped as too old."""
        if group.is_served:
            return
        length = _length(group)
        bounds = np.quantile(np.array([*self._lengths, length]), (0.25, 0.5, 0.75))
        self._too_old[int(np.searchsorted(bounds, length, side="left")) + 1] += 1

    def take(self) -> dict[str, float]:
        """Groups dropped as too old since the last call, by quartile of length; empty without any."""
        counts = {f"too_old_length_quartile/{number}": float(self._too_old[number]) for number in range(1, 5)}
        is_any = bool(self._too_old)
        self._too_old.clear()
        return counts if is_any else {}


def _length(group: Group) -> int:
    """Completion tokens of its longest sample."""
    return max(sample.scored.rollout.num_completion_tokens for sample in group.samples.values())


def _lag_of(group: Group, lag: LagOf, begun_with: int | None = None) -> int:
    """The largest known lag of the samples that it has, and of the version that it was begun with; -1 without any."""
    versions = {version for sample in group.samples.values() for version in sample.scored.rollout.weight_versions}
    if begun_with is not None:
        versions.add(begun_with)
    return max((steps for version in versions if (steps := lag(version)) is not None), default=-1)


class Intake:
    """Complete groups that wait for a step. Each is admitted twice: when it became complete, and when a step takes it.

    In between steps go on, so a group may have become too old.
    """

    def __init__(
        self,
        assembler: Assembler,
        aging: Aging,
        rules: AdmissionRules,
        *,
        expired_before: dict[Partition, int],
        ones_per_group: int = 1,
    ) -> None:
        """`expired_before`: where each partition ended at a start with --accept-loss; else empty.

        An incomplete group whose prompt lies before that closes as expired instead of lost.
        `ones_per_group`: so many groups of one count as one group.
        """
        self.assembler = assembler
        self.lag_by_length = LagByLength()
        self._aging = aging
        self._rules = rules
        self._expired_before = expired_before
        self._waiting = Waiting(ones_per_group=ones_per_group, least_ones=2 if rules.compares_ones else 1)

    @property
    def num_ready(self) -> int:
        """Groups that a step may take; `ones_per_group` groups of one count as one."""
        return self._waiting.num_groups

    def settle(self, lag: LagOf) -> None:
        """Admit the groups that became complete: those that are refused are dropped at once."""
        for group in self.assembler.take_completed():
            self.lag_by_length.note(group)
            if self._admit(group, lag) is not None:
                self._waiting.add(group)
                if self._waiting.num_alone > MOST_ALONE:
                    oldest = self._waiting.alone()[0]
                    self._waiting.remove(oldest)
                    self.assembler.drop(oldest.group_id, DropReason.OVERFLOW)

    def has_late(self, lag: LagOf) -> bool:
        """Whether one more step would make a group too old that still lacks samples.

        Its samples so far tell it, or before any came the generators (`Aging.begun_with`).
        """
        if self._rules.lag_scope == "token":
            return False
        return any(
            _lag_of(group, lag, self._aging.begun_with(group)) == self._rules.lag_bound(group)
            for group in self.assembler.incomplete
        )

    def batch(self, num_groups: int, lag: LagOf) -> tuple[Admitted, ...] | None:
        """The next step's groups; None while there are too few. They stay open until closed.

        What a step would take and is refused now is dropped, and the step takes others, if there are any.
        """
        if self.num_ready >= num_groups:
            # No step takes these, so that nobody else would see that they are too old by now.
            self._admitted(self._waiting.alone(), lag)
        while self.num_ready >= num_groups:
            chosen = self._waiting.next_step(num_groups, lambda group: _lag_of(group, lag))
            batch = self._admitted(chosen, lag)
            if len(batch) < len(chosen):
                continue
            batch = compared(batch, self._rules)
            without_spread = [] if self._rules.trains_flat else flat(batch)
            for admitted in without_spread or batch:
                self._waiting.remove(admitted.group)
            if not without_spread:
                return tuple(batch)
            for admitted in without_spread:
                self.assembler.drop(admitted.group.group_id, DropReason.NO_SPREAD)
        return None

    def tick(self, now: float, *, is_fresh: bool) -> None:
        """Let groups age, for as long as the broker answers."""
        self._aging.tick(now, is_fresh=is_fresh)

    def give_up_lost(self, upstream: Upstream, read: ReadUpTo) -> None:
        """Drop the incomplete groups that will never be complete."""
        self._aging.observe(upstream, self.assembler.incomplete, read)
        for group in self._aging.lost(self.assembler.incomplete, read):
            self.assembler.drop(group.group_id, DropReason.EXPIRED if self._is_expired(group) else DropReason.LOST)

    def _admitted(self, groups: Iterable[Group], lag: LagOf) -> list[Admitted]:
        """Those of the waiting groups that are still admitted; the others wait no more."""
        found = []
        for group in groups:
            verdict = self._admit(group, lag)
            if verdict is None:
                self._waiting.remove(group)
            else:
                found.append(verdict)
        return found

    def _admit(self, group: Group, lag: LagOf) -> Admitted | None:
        if self.assembler.is_closed(group.group_id):
            return None
        verdict = admit(group, self._rules, lag)
        if verdict is DropReason.TOO_OLD:
            self.lag_by_length.note_too_old(group)
        if isinstance(verdict, Admitted):
            return verdict
        self.assembler.drop(group.group_id, verdict)
        return None

    def _is_expired(self, group: Group) -> bool:
        if group.prompt_place is None:
            return bool(self._expired_before)
        return group.prompt_place.offset < self._expired_before.get(group.prompt_place.partition, 0)
