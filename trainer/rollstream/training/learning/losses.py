"""Policy-gradient surrogates by the name of their paper. Pure: tensors in, loss per token out.

`objective.py` puts the loss together. `N`: the tokens of a micro-batch that train, all samples one after another.
A surrogate gives the loss of each token before normalization; `normalization.token_weights` says how much each token
counts. The importance weight w corrects for the policy lag (`corrections.py`); no gradient flows through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from rollstream.training.learning.corrections import sums_of_rollouts
from rollstream.training.learning.objective_settings import LossName


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of a micro-batch that train."""

    policy_logprobs: Tensor
    """[N] under the weights being trained; carries the gradient."""
    old_logprobs: Tensor
    """[N] the denominator of the importance ratio, detached: proximal or behavior."""
    importance_weights: Tensor
    """[N] detached, 1 where no correction applies."""
    advantages: Tensor
    """[N] the advantage of each token's sample."""
    rollouts: Tensor
    """[N] int64 below N, which sequence of the micro-batch each token belongs to: all samples of a rollout are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The bounds of the importance ratio: [1 - low, 1 + high]; of samples with a negative advantage `dual`, if any."""

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Loss per token, and where a clip bound took effect."""

    loss: Tensor
    """[N]"""
    clipped_low: Tensor
    """[N] bool"""
    clipped_high: Tensor
    """[N] bool"""


Surrogate = Callable[[TokenBatch, Clip], TokenLoss]

# Above it exp overflows in float32, and the gradient is not a number: one nearly impossible token would end the step.
MAX_LOG_RATIO: Final = 20.0


def clipped(batch: TokenBatch, clip: Clip) -> TokenLoss:
    """-w · min(r·A, clip(r, 1 - low, 1 + high)·A), r = policy / old per token.

    PPO (arXiv 1707.06347) eq. 7 with low = high; GRPO, DeepSeekMath (arXiv 2402.03300) eq. 3, without its KL term;
    Dr. GRPO (arXiv 2503.20783) section 3.2; DAPO (arXiv 2503.14476) eq. 8 with high > low. They differ in their
    normalization, which the loss's name chooses (`objective_settings.py`), and in whether advantages are divided by the
    standard deviation, which is a setting of its own.
    With `clip.dual` the loss of a token with A < 0 is at most -w · dual · A: dual-clip PPO (arXiv 1912.09729) eq. 5.
    """
    return _clipped(batch.policy_logprobs - batch.old_logprobs, batch, clip)


def gspo(batch: TokenBatch, clip: Clip) -> TokenLoss:
    """As `clipped`, with the ratio of whole sequences: r = exp(mean over the sequence of log policy - log old).

    GSPO (arXiv 2507.18071) eqs. 5 and 7. A rollout is one sequence, all of its tokens that train, however many samples
    it became. Its own clip range is about a thousand times smaller than GRPO's.
    """
    log_ratio = batch.policy_logprobs - batch.old_logprobs
    counts = torch.bincount(batch.rollouts, minlength=len(log_ratio))
    means = sums_of_rollouts(log_ratio, batch.rollouts) / counts.clamp(min=1)
    return _clipped(means[batch.rollouts], batch, clip)


def cispo(batch: TokenBatch, clip: Clip) -> TokenLoss:
    """-w · stop_gradient(min(r, 1 + high)) · A · log policy: every token keeps a gradient, its weight is bounded.

    CISPO, MiniMax-M1 (arXiv 2506.13585) eqs. 4 and 5, with no lower bound, as they train.
    """
    ratio = torch.exp(batch.policy_logprobs.detach() - batch.old_logprobs)
    bounded = ratio.clamp(max=1 + clip.high)
    loss = -batch.importance_weights * bounded * batch.advantages * batch.policy_logprobs
    return TokenLoss(loss=loss, clipped_low=torch.zeros_like(ratio, dtype=torch.bool), clipped_high=ratio > bounded)


def reinforce(batch: TokenBatch, _: Clip) -> TokenLoss:
    """-w · A · log policy: the policy gradient itself, REINFORCE (Williams 1992), without ratio or clip range."""
    return _unclipped(-batch.importance_weights * batch.advantages * batch.policy_logprobs)


def nll(batch: TokenBatch, _: Clip) -> TokenLoss:
    """-log policy: the cross-entropy of supervised fine-tuning, without advantage, importance weight or clip range."""
    return _unclipped(-batch.policy_logprobs)


SURROGATES: Mapping[LossName, Surrogate] = {
    "grpo": clipped,
    "dr_grpo": clipped,
    "dapo": clipped,
    "ppo": clipped,
    "gspo": gspo,
    "cispo": cispo,
    "reinforce": reinforce,
    "nll": nll,
}


def k2(difference: Tensor) -> Tensor:
    """d² / 2, an estimate of KL(policy ‖ reference) per token; `difference` [N]: d = log policy - log reference.

    Estimators by Schulman, "Approximating KL Divergence" (2020). That an estimate is right on average does not make
    its gradient right as a loss (arXiv 2506.09477): a loss ignores that the policy chose the tokens. Over the policy's
    own tokens k2's gradient, d · ∇log policy, is that of KL(policy ‖ reference).
    There is no k1: d has the gradient ∇log policy, whose mean is 0, and the reference is not in it. It is for the
    reward (`advantages.py`).
    """
    return difference.square() / 2


def k3(difference: Tensor) -> Tensor:
    """exp(-d) - 1 + d, GRPO's, DeepSeekMath (arXiv 2402.03300) eq. 4: unbiased, and never below 0.

    As a loss its gradient over the policy's own tokens is that of KL(reference ‖ policy), see `k2`.
    """
    # Both terms: were the exponent alone bounded, the gradient beyond would lead away from the reference.
    log_ratio = (-difference).clamp(max=MAX_LOG_RATIO)
    return torch.exp(log_ratio) - 1 - log_ratio


KL_LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {"k2": k2, "k3": k3}


def _clipped(log_ratio: Tensor, batch: TokenBatch, clip: Clip) -> TokenLoss:
    ratio = torch.exp(log_ratio.clamp(max=MAX_LOG_RATIO))
    advantages = batch.advantages
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    clipped_high = (ratio.detach() > 1 + clip.high) & (advantages > 0)
    if clip.dual is not None:
        is_bounded = (ratio.detach() > clip.dual) & (advantages < 0)
        objective = torch.where(is_bounded, clip.dual * advantages, objective)
        clipped_high |= is_bounded
    return TokenLoss(
        loss=-batch.importance_weights * objective,
        clipped_low=(ratio.detach() < 1 - clip.low) & (advantages < 0),
        clipped_high=clipped_high,
    )


def _unclipped(loss: Tensor) -> TokenLoss:
    nothing = torch.zeros_like(loss, dtype=torch.bool)
    return TokenLoss(loss=loss, clipped_low=nothing, clipped_high=nothing)
