"""Every name that a step reports in its ledger entry, and how each is computed. Pure.

Vocabulary as in TRL and verl. Shares are ratios in [0, 1]; times are seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.learning.samples import is_truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTotals:
    """Sums over the tokens of one optimizer minibatch, added up over its micro-batches."""

    tokens: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    weight: float = 0.0
    """Of the importance weight, capped."""
    capped: float = 0.0
    raw_weight: float = 0.0
    """Of the importance weight before the cap."""
    raw_weight_squared: float = 0.0
    tokens_lag_0: float = 0.0
    mismatch_lag_0: float = 0.0
    tokens_lagged: float = 0.0
    mismatch_lagged: float = 0.0
    weight_max: float = 0.0


def learning_metrics(totals: Sequence[LearningTotals]) -> dict[str, float]:
    """Entropy, clip fractions, importance weights and mismatch of one step, from the totals of its updates.

    mismatch_kl is the estimate E[r - 1 - log r] of KL(behavior ‖ proximal), r = proximal / behavior per sampled
    token: at lag 0 it measures engine against trainer and should be about 0; above, it also measures learning.
    effective_sample_size_ratio is (Σr)² ÷ (N·Σr²).
    """

    def total(name: str) -> float:
        return sum(float(getattr(part, name)) for part in totals)

    tokens = max(1.0, total("tokens"))
    squares = total("raw_weight_squared")
    return {
        "entropy": total("entropy") / tokens,
        "clip_fraction_low": total("clipped_low") / tokens,
        "clip_fraction_high": total("clipped_high") / tokens,
        "importance_weight_mean": total("weight") / tokens,
        "importance_weight_max": max((part.weight_max for part in totals), default=0.0),
        "importance_weight_capped_ratio": total("capped") / tokens,
        "effective_sample_size_ratio": total("raw_weight") ** 2 / (tokens * squares) if squares else 0.0,
        "mismatch_kl_lag_0": total("mismatch_lag_0") / max(1.0, total("tokens_lag_0")),
        "mismatch_kl_lagged": total("mismatch_lagged") / max(1.0, total("tokens_lagged")),
        "trained_tokens": total("tokens"),
    }


def rollout_metrics(scored: Iterable[RolloutScored]) -> dict[str, float]:
    """Rewards, completion lengths and times over every completed sample of the groups that the step closes.

    Dropped groups belong to it: a mean over trained groups alone is biased, since those without spread are missing.
    """
    completed = [sample for sample in scored if sample.scoring.reward is not None]
    if not completed:
        return {}
    rewards = np.array([sample.scoring.reward for sample in completed], dtype=np.float64)
    lengths = np.array([sample.rollout.num_completion_tokens for sample in completed], dtype=np.float64)
    seconds = [(sample.rollout.finished_at - sample.rollout.started_at).total_seconds() for sample in completed]
    components: dict[str, list[float]] = {}
    for sample in completed:
        for name, value in sample.scoring.components.items():
            components.setdefault(name, []).append(value)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "completion_tokens_mean": float(lengths.mean()),
        "completion_tokens_max": float(lengths.max()),
        "generated_tokens": float(lengths.sum()),
        "rollout_seconds_p99": float(np.quantile(seconds, 0.99)),
        "truncated_ratio": float(np.mean([is_truncated(sample.rollout) for sample in completed])),
        **{f"reward_component/{name}": float(np.mean(values)) for name, values in components.items()},
    }


def group_metrics(num_trained: int, dropped: Mapping[str, int], *, no_spread_reason: str) -> dict[str, float]:
    """Counts of the groups that the step closes; `dropped` counts by reason."""
    num_dropped = sum(dropped.values())
    num_closed = max(1, num_trained + num_dropped)
    return {
        "groups_trained": float(num_trained),
        "groups_dropped": float(num_dropped),
        "dropped_ratio": num_dropped / num_closed,
        "zero_std_ratio": dropped.get(no_spread_reason, 0) / num_closed,
        **{f"groups_dropped/{reason}": float(count) for reason, count in dropped.items()},
    }


def lag_metrics(policy_lags: Sequence[int]) -> dict[str, float]:
    """Policy lag of the samples that the step trains on."""
    if not policy_lags:
        return {}
    return {"policy_lag_mean": float(np.mean(policy_lags)), "policy_lag_max": float(max(policy_lags))}


def throughput_metrics(
    *, generated_tokens: float, trained_tokens: float, wall_seconds: float, seconds: Mapping[str, float]
) -> dict[str, float]:
    """Tokens per second of wall time, and the seconds of each phase.

    `seconds`: waiting, packing, forward_backward, optimizer, publishing.
    """
    wall = max(wall_seconds, 1e-9)
    return {
        "step_seconds": wall_seconds,
        "generated_tokens_per_second": generated_tokens / wall,
        "trained_tokens_per_second": trained_tokens / wall,
        **{f"{phase}_seconds": value for phase, value in seconds.items()},
    }
