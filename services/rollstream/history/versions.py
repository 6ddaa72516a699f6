"""The tree of weight versions, and the policy lag between two of them. Pure.

The policy lag is the number of optimizer steps on the path in the tree, not the difference of the version numbers.

A trainer that restores version 3 while version 5 exists goes on as version 6, whose parent is 3:

    3 ── step ── 4 ── step ── 5
    └─ restart ─ 6

For a trainer at version 6, a sample of version 3 has lag 0 and a sample of version 5 has lag 2. A sample with spans of
both has lag 2 too.

Trainers go on for weeks, so the tree keeps ranges of versions, not each version.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Trainers count up from 0, one by one. A larger number on `weights` is a stranger's: if it counted, then there would be
# none left for the next version, which is above all that were ever published (records end at 2^53).
LARGEST_VERSION: Final = 2**52


class VersionRange(NamedTuple):
    """Versions `first` to `last`, each one optimizer step after the one before it.

    `parent` is that of the first; `depth`: optimizer steps from the root of the tree to the first.
    """

    first: int
    last: int
    parent: int | None
    depth: int


@dataclass(slots=True)
class VersionTree:
    """Every version ever published, with its parent. A step is one optimizer step, a restart or rollback is none."""

    ranges: list[VersionRange] = field(default_factory=list)
    """By version; each version is in one of them at most."""

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self._find(version) is not None

    def add(self, version: int, parent: int | None, *, is_step: bool) -> None:
        """Add a version; one that is there already stays as it is. Its parent must be in the tree, and smaller."""
        if version in self:
            return
        if parent is not None and not (parent < version and parent in self):
            raise ValueError(f"version {version}: its parent {parent} is not in the tree, or not smaller")
        index = bisect_right(self.ranges, version, key=lambda known: known.first)
        before = self.ranges[index - 1] if index else None
        if is_step and before is not None and before.last == parent == version - 1:
            self.ranges[index - 1] = before._replace(last=version)
        else:
            depth = 0 if parent is None else self.depth(parent) + int(is_step)
            self.ranges.insert(index, VersionRange(version, version, parent, depth))

    def parent(self, version: int) -> int | None:
        """The version that this one was trained or restored from; None for the first version and for unknown ones."""
        known = self._find(version)
        if known is None:
            return None
        return known.parent if version == known.first else version - 1

    def depth(self, version: int) -> int:
        """Optimizer steps from the root to `version`; raises KeyError for one that is not in the tree."""
        known = self._range(version)
        return known.depth + version - known.first

    def branch(self, version: int) -> Iterator[range]:
        """`version` and all its ancestors, as ranges of numbers, the newest range first."""
        end: int | None = version
        while end is not None:
            known = self._range(end)
            yield range(known.first, end + 1)
            end = known.parent

    def policy_lag(self, sampled: Iterable[int], trainer: int) -> int | None:
        """The largest lag of the versions that sampled a rollout; None if there are none or one is unknown."""
        lags = [self.lag(version, trainer) for version in sampled]
        known = [lag for lag in lags if lag is not None]
        return max(known) if known and len(known) == len(lags) else None

    def lag(self, sampled: int, trainer: int) -> int | None:
        """Optimizer steps on the path between the two versions; None if either is unknown."""
        if sampled not in self or trainer not in self:
            return None
        one, other = sampled, trainer
        while (mine := self._range(one)) != (its := self._range(other)):
            # A parent's number is below its child's, so the way up from the later range leads to the common ancestor.
            if mine.first < its.first:
                one, other, mine = other, one, its
            if mine.parent is None:
                return None
            one = mine.parent
        return self.depth(sampled) + self.depth(trainer) - 2 * self.depth(min(one, other))

    def _range(self, version: int) -> VersionRange:
        known = self._find(version)
        if known is None:
            raise KeyError(version)
        return known

    def _find(self, version: int) -> VersionRange | None:
        index = bisect_right(self.ranges, version, key=lambda known: known.first)
        known = self.ranges[index - 1] if index else None
        return known if known is not None and version <= known.last else None
