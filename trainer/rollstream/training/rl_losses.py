"""Losses over a model's logits, for loops of one's own; `learning/losses.py` has the surrogates.

Shapes: `B` samples, `L` length of the longest, `V` vocabulary. `labels[b, t]` is the token that `logits[b, t]` should
predict: of a sequence the model was given all tokens but the last, and labels are all but the first. Only tokens with
loss_mask > 0 count, so what stands elsewhere may be padding. A sample counts as its tokens' mean, as in GRPO
(DeepSeekMath, arXiv 2402.03300, eq. 3), so that long ones count no more than short ones; one without a token that
trains counts as 0. Logits of samples at another temperature than 1 must be divided by it before.
"""

import torch
from torch import Tensor

from rollstream.training.learning.losses import Clip, TokenBatch, TokenLoss, clipped, reinforce


def grpo_loss(logits: Tensor, labels: Tensor, loss_mask: Tensor, advantages: Tensor) -> Tensor:
    """logits [B, L, V], labels [B, L], loss_mask [B, L], advantages [B] → scalar -E[log_prob(sequence) · advantage].

    log_prob(sequence) is the mean of its tokens' logprobs. Raises ValueError for shapes that do not fit.
    """
    tokens = _tokens(logits, labels, loss_mask, advantages)
    return _mean(reinforce(tokens, Clip(low=1.0, high=float("inf"))), tokens, loss_mask)


def ppo_loss(
    logits: Tensor,
    labels: Tensor,
    loss_mask: Tensor,
    advantages: Tensor,
    old_log_probs: Tensor,
    clip_range: float = 0.2,
) -> Tensor:
    """As `grpo_loss`, with PPO's clipped surrogate (arXiv 1707.06347 eq. 7) of each token: a ratio beyond
    1 ± clip_range gains nothing. `old_log_probs` [B, L] are those of the policy that the ratio compares with; where it
    is the policy itself, the gradient is that of `grpo_loss`.
    """
    if not 0 < clip_range < 1:
        raise ValueError(f"clip_range {clip_range} must be above 0 and below 1: 0.2 is usual")
    tokens = _tokens(logits, labels, loss_mask, advantages, old_log_probs)
    return _mean(clipped(tokens, Clip(low=clip_range, high=clip_range)), tokens, loss_mask)


def _tokens(
    logits: Tensor, labels: Tensor, loss_mask: Tensor, advantages: Tensor, old_log_probs: Tensor | None = None
) -> TokenBatch:
    """The tokens that train; logprobs in float32 at least."""
    whole, rows = tuple(logits.shape[:2]), tuple(logits.shape[:1])
    _refuse_shapes(labels=(labels, whole), loss_mask=(loss_mask, whole), advantages=(advantages, rows))
    if old_log_probs is not None:
        _refuse_shapes(old_log_probs=(old_log_probs, whole))
    trains = loss_mask > 0
    samples = trains.nonzero()[:, 0]
    selected = logits[trains]
    selected = selected.to(torch.promote_types(selected.dtype, torch.float32))
    logprobs = torch.log_softmax(selected, dim=-1).gather(1, labels[trains][:, None]).squeeze(1)
    return TokenBatch(
        policy_logprobs=logprobs,
        old_logprobs=logprobs.detach() if old_log_probs is None else old_log_probs[trains].detach(),
        importance_weights=torch.ones_like(logprobs),
        advantages=advantages[samples].detach(),
        rollouts=samples,
    )


def _refuse_shapes(**found: tuple[Tensor, tuple[int, ...]]) -> None:
    for name, (tensor, wanted) in found.items():
        if tuple(tensor.shape) != wanted:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but with these logits it must have {wanted}")


def _mean(loss: TokenLoss, tokens: TokenBatch, loss_mask: Tensor) -> Tensor:
    """Mean over the samples of the mean over each one's tokens that train."""
    counts = (loss_mask > 0).sum(dim=1)
    return (loss.loss / counts[tokens.rollouts]).sum() / len(loss_mask)
