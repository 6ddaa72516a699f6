"""What corrects for tokens that another policy sampled: the importance weight proximal / behavior. Pure.

Behavior and proximal policy differ by policy lag, and by how engine and trainer compute. The weight of a token
multiplies its loss, and no gradient flows through it. `N`: the tokens of a micro-batch that train.

- none: 1.
- token: min(ratio, cap). Decoupled PPO (arXiv 2110.00641) eq. 2, truncated as in IMPALA (arXiv 1802.01561).
- sequence: min(product of the ratios of a rollout's tokens, cap), TRL's `sequence_truncate`. Unlike that of a token it
  is unbiased up to the cap, but its variance grows with the length.
- icepop: the ratio; 0 outside [floor, cap]. IcePop, Ring-1T (arXiv 2510.18855).
- mask_sequence: the product; 0 outside [floor, cap]. TRL's default, `sequence_mask`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rollstream.training.learning.objective_settings import Correction


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """What the correction makes of the tokens' ratios."""

    log_ratio: Tensor
    """[N] log proximal - log behavior of each token."""
    weights: Tensor
    """[N] detached"""
    is_capped: Tensor
    """[N] bool: the cap took effect."""
    is_masked: Tensor
    """[N] bool: the token leaves the loss."""


def importance(correction: Correction, log_ratio: Tensor, rollouts: Tensor, bounds: tuple[float, float]) -> Importance:
    """log_ratio [N], rollouts [N] int64 below N, bounds: floor and cap → the weights of the tokens."""
    floor, cap = bounds
    nothing = torch.zeros_like(log_ratio, dtype=torch.bool)
    if correction == "none":
        return Importance(log_ratio=log_ratio, weights=torch.ones_like(log_ratio), is_capped=nothing, is_masked=nothing)
    of_rollouts = correction in ("sequence", "mask_sequence")
    ratio = torch.exp(sums_of_rollouts(log_ratio, rollouts)[rollouts] if of_rollouts else log_ratio)
    if correction in ("token", "sequence"):
        return Importance(log_ratio=log_ratio, weights=ratio.clamp(max=cap), is_capped=ratio > cap, is_masked=nothing)
    is_masked = (ratio < floor) | (ratio > cap)
    return Importance(
        log_ratio=log_ratio, weights=ratio.masked_fill(is_masked, 0.0), is_capped=nothing, is_masked=is_masked
    )


def sums_of_rollouts(values: Tensor, rollouts: Tensor) -> Tensor:
    """values [N], rollouts [N] int64 below N → the sum over each rollout's tokens, [N]; 0 where there is none."""
    # Each rollout has a token, so there are at most N.
    return torch.zeros_like(values).index_add(0, rollouts, values)
