"""What a step reports of its learning: entropy, clipping, importance weights, mismatch KL. Pure.

Names as in TRL and verl; fractions and ratios lie in [0, 1], but for importance weights. What a step reports of its
groups is in `trainer/reporting.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one `train_step` did."""

    loss: float
    """Mean over the optimizer updates that were applied; if none was, that of the one that was skipped."""
    grad_norm: float
    """Largest gradient norm of these updates, before clipping."""
    num_updates: int
    """Optimizer updates applied; 0 when the weights did not change."""
    skipped: bool
    """Whether a loss or gradient that is not finite ended the step early."""
    metrics: Mapping[str, float]
    """Named as `learning_metrics` names them."""
    seconds: Mapping[str, float]
    """Wall time by phase: packing, forward_backward, optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTotals:
    """Sums over the tokens of one optimizer minibatch; `weight_max` is a maximum.

    Weights are importance weights. `_lag_0` and `_lagged`: over tokens whose sample has policy lag 0, or above.
    """

    tokens: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    weight: float = 0.0
    """As corrected."""
    capped: float = 0.0
    masked: float = 0.0
    raw_weight: float = 0.0
    """As it is."""
    raw_weight_squared: float = 0.0
    tokens_lag_0: float = 0.0
    mismatch_lag_0: float = 0.0
    tokens_lagged: float = 0.0
    mismatch_lagged: float = 0.0
    kl: float = 0.0
    """Of the policy from the reference; 0 without one."""
    entropy_bonus: float = 0.0
    """What the entropy takes off the loss."""
    weight_max: float = 0.0


def learning_metrics(totals: Sequence[LearningTotals]) -> dict[str, float]:
    """Entropy (nats), clip fractions, importance weights and mismatch KL of one step, from the totals of its updates.

    mismatch_kl is the estimate E[r - 1 - log r] of KL(behavior ‖ proximal), with r = proximal / behavior of each
    sampled token. At policy lag 0 it compares the engine's logprobs with the trainer's and should be about 0. Above,
    it also shows how far the policy has moved since. effective_sample_size_ratio is (Σr)² ÷ (N·Σr²).
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
        "importance_weight_masked_ratio": total("masked") / tokens,
        "effective_sample_size_ratio": total("raw_weight") ** 2 / (tokens * squares) if squares else 0.0,
        "mismatch_kl_lag_0": total("mismatch_lag_0") / max(1.0, total("tokens_lag_0")),
        "mismatch_kl_lagged": total("mismatch_lagged") / max(1.0, total("tokens_lagged")),
        "kl": total("kl") / tokens,
        "entropy_bonus": total("entropy_bonus") / max(1, len(totals)),
        "trained_tokens": total("tokens"),
    }
