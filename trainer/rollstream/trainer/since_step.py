"""What the trainer decided since the step before, over all groups that closed: trained and dropped alike. Pure.

Groups without spread are dropped at once, and an entry of their own closes them within a second. So the entry of a step
closes few of them, if steps take long. A mean over the groups of that entry would leave out most groups that are all
right or all wrong. A step reports its rewards, lengths and shares over these sums instead.

Samples without a reward are in no group's baseline. If scoring fails more often for wrong answers than for right ones,
the others' advantages are wrong by that, and nothing but the share of missing samples shows it.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ledger import MISSING_RATIO, MOST_REWARD_COMPONENTS, REWARD_COMPONENT
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup, DropReason, Group

# Of these the 99th percentile is taken. A trainer may drop groups for weeks without a step.
_LATEST_TIMES: Final = 2**16


@dataclass(slots=True)
class SampleSums:
    """Sums over completed samples. `mean` and `squares` of rewards are Welford's: exact where all are the same."""

    num_samples: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Squared differences from the mean, summed."""
    tokens: int = 0
    most_tokens: int = 0
    num_truncated: int = 0
    components: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Reward function → sum of its rewards, and how many."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST_TIMES))
    """To generate, of those that were not served to clients: what max_policy_lag must leave time for."""

    def add(self, scored: Iterable[RolloutScored]) -> None:
        """Take in those that have a reward."""
        for sample in scored:
            if sample.scoring.reward is not None:
                self._add_reward(sample.scoring.reward)
                self._add_answer(sample)

    def _add_reward(self, reward: float) -> None:
        self.num_samples += 1
        difference = reward - self.mean
        self.mean += difference / self.num_samples
        self.squares += difference * (reward - self.mean)

    def _add_answer(self, sample: RolloutScored) -> None:
        rollout = sample.rollout
        self.tokens += rollout.num_completion_tokens
        self.most_tokens = max(self.most_tokens, rollout.num_completion_tokens)
        self.num_truncated += rollout.is_truncated
        if rollout.served is None:
            self.seconds.append((rollout.finished_at - rollout.started_at).total_seconds())
        for name, value in sample.scoring.components.items():
            if name in self.components or len(self.components) < MOST_REWARD_COMPONENTS:
                total, number = self.components.get(name, (0.0, 0))
                self.components[name] = (total + value, number + 1)

    def metrics(self) -> dict[str, float]:
        """Rewards, completion lengths and times; empty without a sample."""
        if not self.num_samples:
            return {}
        return {
            "reward_mean": self.mean,
            "reward_std": math.sqrt(self.squares / self.num_samples),
            "completion_tokens_mean": self.tokens / self.num_samples,
            "completion_tokens_max": float(self.most_tokens),
            **({"rollout_seconds_p99": float(np.quantile(self.seconds, 0.99))} if self.seconds else {}),
            "truncated_ratio": self.num_truncated / self.num_samples,
            **{f"{REWARD_COMPONENT}{name}": total / number for name, (total, number) in self.components.items()},
        }


@dataclass(slots=True)
class SinceStep:
    """Sums over the groups that closed since the step before."""

    samples: SampleSums = field(default_factory=SampleSums)
    num_trained: int = 0
    num_flat: int = 0
    """Trained without spread."""
    dropped: Counter[DropReason] = field(default_factory=Counter)
    num_samples: int = 0
    """Completed or missing, of the groups that were for training."""
    missing: Counter[str] = field(default_factory=Counter)
    """Failure code → samples without a reward; LOST → samples that never came."""

    def add_drops(self, drops: Iterable[DroppedGroup]) -> None:
        for drop in drops:
            self.dropped[drop.reason] += 1
            self.samples.add(sample.scored for sample in drop.group.samples.values())
            if drop.reason is not DropReason.NOT_FOR_TRAINING:
                self._add_missing(drop.group)
            if drop.reason in (DropReason.LOST, DropReason.EXPIRED):
                num_lost = max(0, drop.group.group_size - len(drop.group.samples))
                self.num_samples += num_lost
                self.missing[DropReason.LOST] += num_lost

    def add_trained(self, batch: Sequence[Admitted]) -> None:
        self.num_trained += len(batch)
        self.num_flat += sum(not admitted.has_spread for admitted in batch)
        for admitted in batch:
            self.samples.add(sample.scored for sample in admitted.group.samples.values())
            self._add_missing(admitted.group)

    def metrics(self) -> dict[str, float]:
        """Numbers of the samples, and shares of the groups that were for training."""
        num_dropped = self.dropped.total() - self.dropped[DropReason.NOT_FOR_TRAINING]
        num_closed = max(1, self.num_trained + num_dropped)
        return {
            **self.samples.metrics(),
            "dropped_ratio": num_dropped / num_closed,
            "zero_std_ratio": (self.num_flat + self.dropped[DropReason.NO_SPREAD]) / num_closed,
            "missing_ratio": self.missing.total() / max(1, self.num_samples),
            **{f"{MISSING_RATIO}{code}": number / self.num_samples for code, number in self.missing.items() if number},
        }

    def _add_missing(self, group: Group) -> None:
        self.num_samples += len(group.samples)
        scorings = (sample.scored.scoring for sample in group.samples.values() if not sample.is_completed)
        self.missing.update((one.failure.code if one.failure else FailureCode.UNKNOWN).value for one in scorings)
