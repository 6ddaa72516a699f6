"""Statistics of rewards, and counts of why a row has none. All take the same memory for any number of rows.

With x0 the first of n numbers and d = x - x0: mean = x0 + sum(d) / n, std = sqrt((sum(d²) - sum(d)² / n) / n). This is
the population's standard deviation, as numpy's default (ddof 0). It is exact if all numbers are equal, and for rewards
of 0 and 1. Numbers that come in the same order give the same result to the last bit.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.process.terminal import escaped
from rollstream.rows.conversation import exchange_in
from rollstream.rows.row import BadRow, ReadRow

MAX_NAMES: Final = 1000
"""So many different data sources, or reasons, are told apart; names come from a file, so there may be any number."""
OTHERS: Final = "(others)"
"""Under this name go those beyond `MAX_NAMES`, and those with more than 300 characters."""

_LARGEST: Final = 1e100
_MAX_NAME: Final = 300
_MAX_EXAMPLE: Final = 300
_SHOWN_CHARACTERS: Final = 72
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,39}(?=: |$)")


class RewardStatistics:
    """Rewards, or other figures of rows, that are added one by one.

    `num`: how many; `num_without`: rows that have none, which change no other number. Without any, mean and std are
    NaN, `lowest` is infinite and `highest` minus infinite.
    """

    __slots__ = ("_first", "_squares", "_sum", "highest", "lowest", "num", "num_without")

    def __init__(self) -> None:
        self.num = self.num_without = 0
        self._first = self._sum = self._squares = 0.0
        self.lowest, self.highest = math.inf, -math.inf

    def add(self, value: Any) -> bool:
        """Add the reward of a row, or count that it has none; whether it has one."""
        # JSON knows whole numbers that no float holds, and the squares of the others must stay finite.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            self.num_without += 1
            return False
        if not self.num:
            self._first = value
        self.num += 1
        difference = value - self._first
        self._sum += difference
        self._squares += difference * difference
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        return True

    @property
    def mean(self) -> float:
        """NaN without a reward."""
        return self._first + self._sum / self.num if self.num else math.nan

    @property
    def std(self) -> float:
        """Standard deviation of the population; NaN without a reward."""
        if not self.num:
            return math.nan
        return math.sqrt(max(self._squares - self._sum * self._sum / self.num, 0.0) / self.num)

    def plain(self) -> dict[str, float | None]:
        """Mean, std, min and max as JSON values; None without a reward."""
        known = {"mean": self.mean, "std": self.std, "min": self.lowest, "max": self.highest}
        return {name: value if self.num else None for name, value in known.items()}

    def lines(self) -> list[str]:
        """The block that people read."""
        if not self.num:
            return [f"   No row has a reward ({self.num_without} rows)"]
        found = [
            f"   Reward mean: {self.mean:.3f}",
            f"   Reward std: {self.std:.3f} (population)",
            f"   Min: {self.lowest:.3f}",
            f"   Max: {self.highest:.3f}",
        ]
        return [*found, f"   Without a reward: {self.num_without}"] if self.num_without else found


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
    """Rewards of one data source. `num_judged`: rows of which it is known whether they pass."""

    rewards: RewardStatistics = field(default_factory=RewardStatistics)
    num_judged: int = 0
    num_passed: int = 0

    @property
    def pass_rate(self) -> float | None:
        """Share of the judged rows that pass; None if there are none."""
        return self.num_passed / self.num_judged if self.num_judged else None

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        rewards = self.rewards
        counts = {"num_scored": rewards.num, "num_unscored": rewards.num_without}
        return {**counts, **rewards.plain(), "pass_rate": self.pass_rate}


class StatisticsBySource:
    """Statistics of each data source, in the order in which they come."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceStatistics] = {}

    def add(self, source: str, reward: float | None, passed: bool | None) -> None:
        """Take one row; a reward of None counts as unscored, and in nothing else."""
        has_place = len(self.sources) < MAX_NAMES and len(source) <= _MAX_NAME
        known = source in self.sources or has_place
        statistics = self.sources.setdefault(source if known else OTHERS, SourceStatistics())
        if statistics.rewards.add(reward) and passed is not None:
            statistics.num_judged += 1
            statistics.num_passed += passed


@dataclass(frozen=True, slots=True)
class RolloutsSummary:
    """What a file of rollouts holds. `example`: the first row with a reward. `lowest`: the first one with the least."""

    rewards: RewardStatistics
    example: Mapping[str, Any] | None
    lowest: Mapping[str, Any] | None


def summarized(rows: Iterable[ReadRow | BadRow]) -> RolloutsSummary:
    """Read all rows once. A row that can't be read counts as one without a reward."""
    rewards, example, lowest = RewardStatistics(), None, None
    for row in rows:
        fields = {} if isinstance(row, BadRow) else row.fields
        least = rewards.lowest
        if rewards.add(fields.get("reward")):
            example = example or fields
            lowest = fields if rewards.lowest < least else lowest
    return RolloutsSummary(rewards, example, lowest)


def example_lines(fields: Mapping[str, Any]) -> list[str]:
    """Prompt, completion and reward of one row, each on one line."""
    asked, answer = exchange_in(fields)
    return [
        f"   Prompt: {shown_text(asked)}",
        f"   Completion: {shown_text(answer)}",
        f"   Reward: {fields['reward']:.2f}",
    ]


def shown_text(value: Any, most_characters: int = _SHOWN_CHARACTERS) -> str:
    """The text, or the last message's, on one line that is safe to print, cut where it is longer."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    line = " ".join(value.split()) if isinstance(value, str) else str(value)
    return escaped(line if len(line) <= most_characters else f"{line[:most_characters]}...")
