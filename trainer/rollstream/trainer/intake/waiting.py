"""Complete groups that wait for a step, and which of them the next step takes. Pure.

A step takes groups of one beside larger ones: `ones_per_group` of them in the place of one. How many places go to which
kind is decided by the order of arrival, so neither kind holds up the other. Of each kind those of the oldest versions
come first, then the order of arrival: else more groups would become too old. Example, two places, two ones for a group:

    waiting, first come first      g1  o1  o2  g2  g3
    in order of arrival            g1 takes a place, o1 and o2 take one together: one place for each kind
    the step                       o1, o2, and of g1, g2 and g3 the one of the oldest version

A group of one is compared with the others of its environment in its step, so one that is the only one of its
environment waits for another one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rollstream.trainer.intake.groups import Group

MOST_ALONE: Final = 256
"""Groups of one that may wait, each as the only one of its environment; then the oldest is dropped. A run has a handful
of environments, but whoever writes records may name any."""


class Waiting:
    """The groups that wait, in the order of arrival.

    `least_ones`: so many groups of one of an environment a step takes together, or none of them.
    """

    def __init__(self, *, ones_per_group: int, least_ones: int) -> None:
        self._ones_per_group = ones_per_group
        self._least_ones = least_ones
        self._groups: dict[str, Group] = {}
        self._ones_of: Counter[str] = Counter()
        """Environment → its groups of one."""

    @property
    def num_groups(self) -> int:
        """Groups that a step may take; `ones_per_group` groups of one are one group."""
        num_in_company = sum(number for number in self._ones_of.values() if number >= self._least_ones)
        return len(self._groups) - self._ones_of.total() + num_in_company // self._ones_per_group

    @property
    def num_alone(self) -> int:
        """Groups of one that wait for another one of their environment."""
        return sum(number for number in self._ones_of.values() if number < self._least_ones)

    def add(self, group: Group) -> None:
        self._groups[group.group_id] = group
        if group.is_one:
            self._ones_of[group.environment] += 1

    def remove(self, group: Group) -> None:
        del self._groups[group.group_id]
        if group.is_one:
            self._ones_of -= Counter([group.environment])

    def alone(self) -> list[Group]:
        """Those groups, in the order of arrival."""
        return [group for group in self._groups.values() if not self._may_be_taken(group)]

    def next_step(self, num_groups: int, age: Callable[[Group], int]) -> list[Group]:
        """What the next step takes; they wait on until they are removed. There must be `num_groups` at least.

        `age`: its policy lag; the oldest come first.
        """
        ready = [group for group in self._groups.values() if self._may_be_taken(group)]
        places = self._places_of_ones(ready, num_groups)
        oldest_first = sorted(ready, key=lambda group: -age(group))
        larger = [group for group in oldest_first if not group.is_one]
        ones = (group for group in oldest_first if group.is_one)
        return [*larger[: num_groups - places], *self._in_company(ones, places * self._ones_per_group)]

    def _may_be_taken(self, group: Group) -> bool:
        return not group.is_one or self._ones_of[group.environment] >= self._least_ones

    def _places_of_ones(self, ready: Iterable[Group], num_groups: int) -> int:
        """How many of the first `num_groups` places in the order of arrival groups of one fill."""
        num_ones = num_larger = 0
        for group in ready:
            num_ones += group.is_one
            num_larger += not group.is_one
            if num_larger + num_ones // self._ones_per_group == num_groups:
                break
        return num_ones // self._ones_per_group

    def _in_company(self, ones: Iterable[Group], wanted: int) -> Iterator[Group]:
        """The first `wanted`, or one more, so that none is the only one of its environment."""
        held: dict[str, list[Group]] = {}
        num_taken: Counter[str] = Counter()
        for group in ones:
            if num_taken.total() >= wanted:
                return
            together = [*held.pop(group.environment, []), group]
            if num_taken[group.environment] + len(together) >= self._least_ones:
                yield from together
                num_taken[group.environment] += len(together)
            else:
                held[group.environment] = together
