"""What is worth knowing at the end of a collection, over all its samples, those of earlier processes too."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from rollstream.offline.ended import EndedSample
from rollstream.offline.live import LiveCounts
from rollstream.offline.statistics import RewardStatistics, shown_text
from rollstream.schemas.rollout import FinishReason

KEPT_REWARDS: Final = 100_000
_OFTEN: Final = 0.3
_SHOWN_CHARACTERS: Final = 300


@dataclass(slots=True, kw_only=True)
class CollectSummary:
    """Counts, and rewards as a sample of at most `KEPT_REWARDS` that each reward is in with the same probability."""

    max_attempts: int = 3
    num_tasks: int = 0
    num_bad_rows: int = 0
    num_samples: int = 0
    num_completed: int = 0
    num_truncated: int = 0
    num_unscored: int = 0
    num_given_up: int = 0
    num_tokens: int = 0
    num_groups: int = 0
    num_groups_without_spread: int = 0
    statistics: RewardStatistics = field(default_factory=RewardStatistics)
    """Of all rewards."""
    failures: Counter[str] = field(default_factory=Counter)
    first_messages: dict[str, str] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    _chance: random.Random = field(default_factory=lambda: random.Random(0))

    def see(self, samples: list[EndedSample]) -> None:
        """All samples of one task."""
        self.num_tasks += 1
        for ended in samples:
            self.num_samples += 1
            self.num_completed += ended.is_completed
            self.num_truncated += ended.finish_reason == FinishReason.LENGTH
            self.num_given_up += not ended.is_completed and ended.attempts >= self.max_attempts
            self.num_unscored += ended.scoring_failure is not None
            self.num_tokens += ended.num_tokens
            self._see_failure(ended.failure, ended.message)
            self._see_failure(ended.scoring_failure, ended.scoring_message)
        rewards = [ended.reward for ended in samples if ended.reward is not None]
        for reward in rewards:
            self._see_reward(reward)
        if len(rewards) > 1:
            self.num_groups += 1
            self.num_groups_without_spread += min(rewards) == max(rewards)

    @property
    def share_failed(self) -> float:
        """Of the samples, those without a response; 0 without samples."""
        return (self.num_samples - self.num_completed) / self.num_samples if self.num_samples else 0.0

    @property
    def num_rewards(self) -> int:
        """Samples with a reward."""
        return self.statistics.num

    def counts(self) -> dict[str, int]:
        """What is noted of the whole collection."""
        return {
            "tasks": self.num_tasks,
            "bad_rows": self.num_bad_rows,
            "samples": self.num_samples,
            "completed": self.num_completed,
            "failed": self.num_samples - self.num_completed,
            "truncated": self.num_truncated,
            "scored": self.num_rewards,
            "unscored": self.num_unscored,
            "completion_tokens": self.num_tokens,
        }

    def lines(self, counts: LiveCounts, concurrency: int) -> list[str]:
        """For people."""
        failed = self.num_samples - self.num_completed
        lines = [
            f"{self.num_samples} samples of {self.num_tasks} tasks: {self.num_completed} completed, "
            f"{failed} without a response ({_share(failed, self.num_samples)}), "
            f"{self.num_truncated} cut off at max_tokens ({_share(self.num_truncated, self.num_completed)})"
        ]
        if self.failures:
            lines.append("failures: " + ", ".join(f"{count} {code}" for code, count in self.failures.most_common()))
            lines += [f"   {code}, the first: {message}" for code, message in self.first_messages.items()]
        if self.num_given_up:
            lines.append(
                f"{self.num_given_up} samples failed {self.max_attempts} times: they are not asked again without "
                "--retry-failed"
            )
        if self.num_bad_rows:
            lines.append(f"bad rows: {self.num_bad_rows} of {self.num_tasks + self.num_bad_rows}; none was asked")
        if self.num_rewards:
            lines.append(self._reward_line())
        if counts.num_ended:
            lines.append(rate_line(counts, concurrency))
        return lines

    def _reward_line(self) -> str:
        found = self.statistics
        line = (
            f"reward of {found.num}: mean {found.mean:.4f}, population standard deviation {found.std:.4f}, "
            f"from {found.lowest:g} to {found.highest:g}"
        )
        if self.num_groups:
            line += (
                f"; {_share(self.num_groups_without_spread, self.num_groups)} of {self.num_groups} tasks gave the same "
                "reward to all their samples, which teaches GRPO nothing"
            )
        return line

    def _see_failure(self, code: str | None, message: str | None) -> None:
        if code is not None:
            self.failures[code] += 1
            self.first_messages.setdefault(code, shown_text(message, _SHOWN_CHARACTERS))

    def _see_reward(self, reward: float) -> None:
        self.statistics.add(reward)
        if len(self.rewards) < KEPT_REWARDS:
            self.rewards.append(reward)
        elif (place := self._chance.randrange(self.num_rewards)) < KEPT_REWARDS:
            self.rewards[place] = reward


def rate_line(counts: LiveCounts, concurrency: int) -> str:
    """How fast it was, and what to change to be faster."""
    seconds = counts.elapsed_seconds
    line = (
        f"{counts.num_ended} samples in {seconds:.1f} s: {counts.num_ended / seconds:.1f}/s, "
        f"{counts.num_tokens / seconds:.0f} tokens/s, {counts.sample_seconds / counts.num_ended:.2f} s each, "
        f"at most {counts.most_in_flight} in flight"
    )
    looks = max(counts.num_looks, 1)
    if counts.looks_waiting_for_scoring / looks > _OFTEN:
        return f"{line}; scoring limited the rate: samples waited for it. Allow it more processes"
    if counts.looks_at_bound / looks > _OFTEN:
        return (
            f"{line}; the bound of {concurrency} in flight was reached most of the time: the rate is {concurrency} "
            "divided by the seconds of a sample. Raise it as long as the seconds stay the same, else the engine limits"
        )
    return f"{line}; most of the time too few samples were left to keep {concurrency} in flight"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"
