"""Statistics of rewards, and counts of why a row has none. They take the same memory for any number of rows."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.offline.moments import Moments

MAX_NAMES: Final = 1000
"""So many different data sources, or reasons, are told apart; names come from a file, so there may be any number."""
OTHERS: Final = "(others)"
"""Under this name go those beyond `MAX_NAMES`, and those with more than 300 characters."""

_MAX_NAME: Final = 300
_MAX_EXAMPLE: Final = 300
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,39}(?=: |$)")


class Reasons:
    """How often each reason occurred, with an example. A reason is the start of a text `reason: what exactly`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, text: str, where: str) -> None:
        """Count the reason of `text`."""
        found = _REASON.match(text)
        reason = found.group() if found else "other"
        if reason not in self.counts and len(self.counts) >= MAX_NAMES:
            reason = OTHERS
        self.counts[reason] += 1
        self.examples.setdefault(reason, f"{where}: {text[:_MAX_EXAMPLE]}")

    @property
    def total(self) -> int:
        """How many there were."""
        return self.counts.total()

    def lines(self) -> list[str]:
        """One line a reason, the most frequent first."""
        return [f"{count} x {reason}, e.g. {self.examples[reason]}" for reason, count in self.counts.most_common()]

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            reason: {"count": count, "example": self.examples[reason]} for reason, count in self.counts.most_common()
        }


@dataclass(slots=True)
class SourceStatistics:
    """Rewards of one data source."""

    rewards: Moments = field(default_factory=Moments)
    num_unscored: int = 0
    num_judged: int = 0
    """Rows of which it is known whether they pass."""
    num_passed: int = 0

    @property
    def pass_rate(self) -> float | None:
        """Share of the judged rows that pass; None if there are none."""
        return self.num_passed / self.num_judged if self.num_judged else None

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        rewards = self.rewards
        known = {
            "mean": rewards.mean, "std": rewards.std, "min": rewards.lowest, "max": rewards.highest
        }  # fmt: skip
        return {
            "num_scored": rewards.count,
            "num_unscored": self.num_unscored,
            **{name: value if rewards.count else None for name, value in known.items()},
            "pass_rate": self.pass_rate,
        }


class StatisticsBySource:
    """Statistics of each data source, in the order in which they come."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceStatistics] = {}

    def add(self, source: str, reward: float | None, passed: bool | None) -> None:
        """Take one row; a reward of None counts as unscored, and in nothing else."""
        has_place = len(self.sources) < MAX_NAMES and len(source) <= _MAX_NAME
        known = source in self.sources or has_place
        statistics = self.sources.setdefault(source if known else OTHERS, SourceStatistics())
        if reward is None:
            statistics.num_unscored += 1
            return
        statistics.rewards.add(reward)
        if passed is not None:
            statistics.num_judged += 1
            statistics.num_passed += passed
