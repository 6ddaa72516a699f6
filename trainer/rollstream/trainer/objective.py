"""The loss of one micro-batch and the totals that are reported of it."""

from dataclasses import fields

import torch
from torch import Tensor

from rollstream.trainer.learning_settings import LearningSettings
from rollstream.trainer.losses import SURROGATES, Clip, TokenBatch, TokenLoss, importance_weights
from rollstream.trainer.policy_forward import DeviceBatch, TokenStatistics
from rollstream.trainer.step_metrics import LearningTotals

_MAX_LOG_RATIO = 20.0  # keeps the reported sums finite when a token was all but impossible


def objective(
    batch: DeviceBatch, statistics: TokenStatistics, proximal_logprobs: Tensor | None, settings: LearningSettings
) -> tuple[Tensor, Tensor]:
    """The share of the minibatch's loss (a scalar with gradient) and the totals, in the order of `LearningTotals`.

    `proximal_logprobs` [N] of the policy before the step; None: the current ones, of the only minibatch.
    """
    proximal = statistics.logprobs.detach() if proximal_logprobs is None else proximal_logprobs
    cap = settings.resolved_importance_cap
    weights = importance_weights(proximal, batch.behavior_logprobs, cap)
    tokens = TokenBatch(
        policy_logprobs=statistics.logprobs,
        old_logprobs=proximal if settings.old == "proximal" else batch.behavior_logprobs,
        importance_weights=weights,
        advantages=batch.advantages,
        samples=batch.rows,
        num_samples=len(batch.input_ids),
    )
    token_loss = SURROGATES[settings.loss](tokens, Clip(low=settings.clip_low, high=settings.clip_high))
    loss = (token_loss.loss * batch.weights).sum()
    return loss, _totals(batch, statistics, token_loss, proximal, cap)


def add_totals(totals: list[Tensor]) -> LearningTotals:
    """The totals of a minibatch from those of its micro-batches; the one place that waits for the device."""
    stacked = torch.stack(totals)
    values = [*stacked[:, :-1].sum(dim=0).tolist(), float(stacked[:, -1].max())]
    return LearningTotals(**dict(zip((field.name for field in fields(LearningTotals)), values, strict=True)))


@torch.no_grad()
def _totals(
    batch: DeviceBatch, statistics: TokenStatistics, token_loss: TokenLoss, proximal: Tensor, cap: float | None
) -> Tensor:
    log_ratio = (proximal - batch.behavior_logprobs).clamp(max=_MAX_LOG_RATIO)
    raw = torch.exp(log_ratio)
    weights = torch.ones_like(raw) if cap is None else raw.clamp(max=cap)
    mismatch = raw - 1 - log_ratio
    lagged = batch.lagged.float()
    rows = (
        torch.ones_like(raw),
        statistics.entropies,
        token_loss.clipped_low.float(),
        token_loss.clipped_high.float(),
        weights,
        torch.zeros_like(raw) if cap is None else (raw > cap).float(),
        raw,
        raw.square(),
        1 - lagged,
        mismatch * (1 - lagged),
        lagged,
        mismatch * lagged,
    )
    return torch.cat([torch.stack(rows).double().sum(dim=1), weights.max().double()[None]])
