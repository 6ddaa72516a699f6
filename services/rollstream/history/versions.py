"""The tree of weight versions, and the policy lag between two of them. Pure.

The policy lag is the number of optimizer steps on the path in the tree, not the difference of the version numbers.

A trainer that restores version 3 while version 5 exists goes on as version 6, whose parent is 3:

    3 ── step ── 4 ── step ── 5
    └─ restart ─ 6

For a trainer at version 6, a sample of version 3 has lag 0 and a sample of version 5 has lag 2. A sample with spans of
both has lag 2 too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

# Trainers count up from 0, one by one. A larger number on `weights` is a stranger's: if it counted, then there would be
# none left for the next version, which is above all that were ever published (records end at 2^53).
LARGEST_VERSION: Final = 2**52


@dataclass(slots=True)
class VersionTree:
    """Every version ever published, with its parent. A step is one optimizer step, a restart or rollback is none."""

    _parents: dict[int, int] = field(default_factory=dict)
    _depths: dict[int, int] = field(default_factory=dict)

    def __contains__(self, version: object) -> bool:
        return version in self._depths

    def add(self, version: int, parent: int | None, *, is_step: bool) -> None:
        """Add a version. Its parent must be in the tree, and smaller, since versions only grow."""
        if parent is None:
            self._depths[version] = 0
        else:
            self._parents[version] = parent
            self._depths[version] = self._depths[parent] + int(is_step)

    def parent(self, version: int) -> int | None:
        """The version that this one was trained or restored from; None for the first version and for unknown ones."""
        return self._parents.get(version)

    def policy_lag(self, sampled: Iterable[int], trainer: int) -> int | None:
        """The largest lag of the versions that sampled a rollout; None if there are none or one is unknown."""
        lags = [self.lag(version, trainer) for version in sampled]
        known = [lag for lag in lags if lag is not None]
        return max(known) if known and len(known) == len(lags) else None

    def lag(self, sampled: int, trainer: int) -> int | None:
        """Optimizer steps on the path between the two versions; None if either is unknown."""
        if sampled not in self._depths or trainer not in self._depths:
            return None
        one, other = sampled, trainer
        while one != other:
            # A parent's number is below its child's, so going up from the larger one ends at the common ancestor.
            if one < other:
                one, other = other, one
            if one not in self._parents:
                return None
            one = self._parents[one]
        return self._depths[sampled] + self._depths[trainer] - 2 * self._depths[one]
