"""What a ledger entry reports: counts of the groups that it closes, and for a step what it took and learned. Pure.

Names as in TRL and verl; ratios lie in [0, 1]. What a step reports of its learning is in
`training/learning/step_metrics.py`, what it reports of its groups' rewards in `since_step.py`.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from rollstream.schemas.ledger import TRAINED_AT_LAG
from rollstream.schemas.record import utc_now
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup
from rollstream.trainer.since_step import SinceStep
from rollstream.training.learning.step_metrics import StepReport


@dataclass(slots=True)
class StepClock:
    """Wall time since the training of the step before ended, that step's publishing included, and how it was spent."""

    started_at: datetime = field(default_factory=utc_now)
    waiting_seconds: float = 0.0
    """Blocked without a record to read."""
    assembling_seconds: float = 0.0
    """Decoding, assembling, admitting."""
    late_seconds: float = 0.0
    """A step was due and waited for groups that it would have made too old; reading went on."""
    preparing_seconds: float = 0.0
    """The reference model's forward pass, if there is one, and the advantages."""
    publishing_seconds: float = 0.0
    """Weights, checkpoint and transaction of the step before."""
    _began: float = field(default_factory=time.perf_counter)

    @property
    def wall_seconds(self) -> float:
        """Since the step before ended training."""
        return time.perf_counter() - self._began


def metrics_of_drops(drops: Sequence[DroppedGroup]) -> dict[str, float]:
    """The metrics of an entry that only closes groups."""
    since = SinceStep()
    since.add_drops(drops)
    return {**since.metrics(), **entry_metrics((), drops)}


def metrics_of_step(
    batch: Sequence[Admitted],
    drops: Sequence[DroppedGroup],
    since: SinceStep,
    report: StepReport,
    clock: StepClock,
) -> dict[str, float]:
    """The metrics of one optimizer step, whose entry closes `batch` and `drops`.

    `since` has every group that closed since the step before: these, and those of the entries between both steps.
    Publishing is that of the step before: this one is not published yet.
    """
    wall = max(clock.wall_seconds, 1e-9)
    seconds: Mapping[str, float] = {
        "waiting": clock.waiting_seconds,
        "assembling": clock.assembling_seconds,
        "waiting_for_late": clock.late_seconds,
        **report.seconds,
        "forward_backward": report.seconds["forward_backward"] + clock.preparing_seconds,
        "publishing": clock.publishing_seconds,
        "step": wall,
    }
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        **report.metrics,
        **since.metrics(),
        **entry_metrics(batch, drops),
        **_lags("policy_lag", [admitted for admitted in batch if not admitted.group.is_served]),
        **_served_metrics(batch),
        "generated_tokens_per_second": since.samples.tokens / wall,
        "trained_tokens_per_second": report.metrics.get("trained_tokens", 0.0) / wall,
        **{f"{phase}_seconds": value for phase, value in seconds.items()},
    }


def _served_metrics(batch: Sequence[Admitted]) -> dict[str, float]:
    """The share of answers to clients, their lag, which is bounded apart, and the reward of groups of one."""
    served = [admitted for admitted in batch if admitted.group.is_served]
    rewards = [admitted.training[0].reward for admitted in batch if admitted.group.is_one]
    num_samples = sum(len(admitted.scored) for admitted in batch)
    return {
        "served_ratio": sum(len(admitted.scored) for admitted in served) / num_samples,
        **(_lags("served_policy_lag", served) if served else {}),
        **({"ones_reward_mean": float(np.mean(rewards))} if rewards else {}),
    }


def _lags(name: str, groups: Sequence[Admitted]) -> dict[str, float]:
    """Mean and maximum over the rollouts, 0 without any; one whose turns branch is several samples."""
    lags = list({one.rollout_id: one.policy_lag for admitted in groups for one in admitted.training}.values()) or [0]
    return {f"{name}_mean": float(np.mean(lags)), f"{name}_max": float(max(lags))}


def entry_metrics(batch: Sequence[Admitted], drops: Sequence[DroppedGroup]) -> dict[str, float]:
    """Counts of what one entry closes; over all entries they add up to the whole run."""
    groups = [*(admitted.group for admitted in batch), *(drop.group for drop in drops)]
    completed = (sample for group in groups for sample in group.samples.values() if sample.is_completed)
    reasons = Counter(drop.reason.value for drop in drops)
    return {
        "generated_tokens": float(sum(sample.scored.rollout.num_completion_tokens for sample in completed)),
        "groups_trained": float(len(batch)),
        "groups_dropped": float(len(drops)),
        **{f"groups_dropped/{reason}": float(count) for reason, count in reasons.items()},
    }


def tokens_by_lag(batch: Sequence[Admitted], lag: Callable[[int], int | None]) -> dict[str, float]:
    """Tokens that the step trained on by the policy lag of the weights that sampled them; `lag`: version → steps."""
    counts: Counter[int] = Counter()
    samples = [sample for admitted in batch for sample in admitted.training]
    trained = [one.weight_versions[one.loss_mask] for one in samples if one.weight_versions is not None]
    versions, numbers = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *trained]), return_counts=True)
    for version, number in zip(versions.tolist(), numbers.tolist(), strict=True):
        counts[lag(version) or 0] += number
    return {f"{TRAINED_AT_LAG}{steps}": float(number) for steps, number in sorted(counts.items())}
