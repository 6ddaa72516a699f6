"""The statistics block of a file of rollouts: mean, standard deviation, least and greatest reward, and one example.

The numbers are those that numpy gives for the column `reward` without its nulls. The memory is constant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.offline.moments import Moments
from rollstream.process.terminal import escaped
from rollstream.rows.conversation import exchange_in
from rollstream.rows.row import BadRow, ReadRow

_LARGEST: Final = 1e100
_SHOWN_CHARACTERS: Final = 72


@dataclass(slots=True)
class RewardStatistics:
    """Rewards that were added one by one. `num_without`: rows that have none; they change no other number."""

    num_without: int = 0
    _moments: Moments = field(default_factory=Moments)

    def add(self, reward: Any) -> None:
        """Add the reward of a row, or count that it has none."""
        # JSON knows whole numbers that no float holds, and the squares of the others must stay finite.
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= _LARGEST:
            self.num_without += 1
        else:
            self._moments.add(reward)

    @property
    def num(self) -> int:
        """Rows with a reward."""
        return self._moments.count

    @property
    def lowest(self) -> float:
        """Infinite without a reward."""
        return self._moments.lowest

    @property
    def highest(self) -> float:
        """Minus infinity without a reward."""
        return self._moments.highest

    @property
    def mean(self) -> float:
        """NaN without a reward."""
        return self._moments.mean

    @property
    def std(self) -> float:
        """Standard deviation of the population, as numpy's default is (ddof 0); NaN without a reward."""
        return self._moments.std

    def lines(self) -> list[str]:
        """The block, in the order of source document 000."""
        if not self.num:
            return [f"   No row has a reward ({self.num_without} rows)"]
        found = [
            f"   Reward mean: {self.mean:.3f}",
            f"   Reward std: {self.std:.3f} (population)",
            f"   Min: {self.lowest:.3f}",
            f"   Max: {self.highest:.3f}",
        ]
        return [*found, f"   Without a reward: {self.num_without}"] if self.num_without else found


@dataclass(frozen=True, slots=True)
class Summary:
    """What a file of rollouts holds. `example`: the first row with a reward. `lowest`: the first one with the least."""

    rewards: RewardStatistics
    example: Mapping[str, Any] | None
    lowest: Mapping[str, Any] | None


def summarized(rows: Iterable[ReadRow | BadRow]) -> Summary:
    """Read all rows once. A row that can't be read counts as one without a reward."""
    rewards, example, lowest = RewardStatistics(), None, None
    for row in rows:
        fields = {} if isinstance(row, BadRow) else row.fields
        num_before, least = rewards.num, rewards.lowest
        rewards.add(fields.get("reward"))
        if rewards.num == num_before:
            continue
        example = example or fields
        if rewards.lowest < least:
            lowest = fields
    return Summary(rewards, example, lowest)


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
