"""Policy-gradient surrogates by the name of their paper. Pure: tensors in, loss per token out.

`objective.py` puts the loss together. `N`: the tokens of a micro-batch that train, all samples one after another.
A surrogate gives the loss of each token before normalization; `normalization.token_weights` says how much each token
counts. The importance weight w = min(proximal / behavior, cap) corrects for the policy lag (decoupled PPO, arXiv
2110.00641 eq. 2; truncation as in IMPALA, arXiv 1802.01561). No gradient flows through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from rollstream.training.learning.settings import LossName


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
    samples: Tensor
    """[N] int64 below N, which sequence of the micro-batch each token belongs to: all samples of a rollout are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The bounds of the importance ratio: [1 - low, 1 + high]."""

    low: float
    high: float


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
    normalization, which the loss's name chooses (`settings.py`), and in whether advantages are divided by the
    standard deviation, which is a setting of its own.
    """
    return _clipped(batch.policy_logprobs - batch.old_logprobs, batch, clip)


def gspo(batch: TokenBatch, clip: Clip) -> TokenLoss:
    """As `clipped`, with the ratio of whole sequences: r = exp(mean over the sequence of log policy - log old).

    GSPO (arXiv 2507.18071) eqs. 5 and 7. A rollout is one sequence, all of its tokens that train, however many samples
    it became. Its own clip range is about a thousand times smaller than GRPO's.
    """
    log_ratio = batch.policy_logprobs - batch.old_logprobs
    # Each sample has a token, so there are at most N.
    sums = torch.zeros_like(log_ratio).index_add(0, batch.samples, log_ratio)
    counts = torch.bincount(batch.samples, minlength=len(log_ratio))
    return _clipped((sums / counts.clamp(min=1))[batch.samples], batch, clip)


def cispo(batch: TokenBatch, clip: Clip) -> TokenLoss:
    """-w · stop_gradient(min(r, 1 + high)) · A · log policy: every token keeps a gradient, its weight is bounded.

    CISPO, MiniMax-M1 (arXiv 2506.13585) eqs. 4 and 5, with no lower bound, as they train.
    """
    ratio = torch.exp(batch.policy_logprobs.detach() - batch.old_logprobs)
    bounded = ratio.clamp(max=1 + clip.high)
    loss = -batch.importance_weights * bounded * batch.advantages * batch.policy_logprobs
    return TokenLoss(loss=loss, clipped_low=torch.zeros_like(ratio, dtype=torch.bool), clipped_high=ratio > bounded)


def nll(batch: TokenBatch, _: Clip) -> TokenLoss:
    """-log policy: the cross-entropy of supervised fine-tuning, without advantage, importance weight or clip range."""
    nothing = torch.zeros_like(batch.policy_logprobs, dtype=torch.bool)
    return TokenLoss(loss=-batch.policy_logprobs, clipped_low=nothing, clipped_high=nothing)


SURROGATES: Mapping[LossName, Surrogate] = {
    "grpo": clipped,
    "dr_grpo": clipped,
    "dapo": clipped,
    "ppo": clipped,
    "gspo": gspo,
    "cispo": cispo,
    "nll": nll,
}


def importance_weights(proximal_logprobs: Tensor, behavior_logprobs: Tensor, cap: float | None) -> Tensor:
    """[N] min(proximal / behavior, cap), detached; 1 if `cap` is None."""
    if cap is None:
        return torch.ones_like(behavior_logprobs)
    return torch.exp(proximal_logprobs.detach() - behavior_logprobs).clamp(max=cap)


def _clipped(log_ratio: Tensor, batch: TokenBatch, clip: Clip) -> TokenLoss:
    ratio = torch.exp(log_ratio.clamp(max=MAX_LOG_RATIO))
    advantages = batch.advantages
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    return TokenLoss(
        loss=-batch.importance_weights * objective,
        clipped_low=(ratio.detach() < 1 - clip.low) & (advantages < 0),
        clipped_high=(ratio.detach() > 1 + clip.high) & (advantages > 0),
    )
