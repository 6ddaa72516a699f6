"""Puts the loss of one micro-batch together, and the totals that a step reports of it."""

from dataclasses import fields

import torch
from torch import Tensor

from rollstream.training.learning.losses import (
    MAX_LOG_RATIO,
    SURROGATES,
    Clip,
    TokenBatch,
    TokenLoss,
    importance_weights,
)
from rollstream.training.learning.packing import MicroBatch
from rollstream.training.learning.policy_forward import TokenStatistics
from rollstream.training.learning.settings import ObjectiveSettings
from rollstream.training.learning.step_metrics import LearningTotals

_SUMS = tuple(field.name for field in fields(LearningTotals) if field.name != "weight_max")


def loss_and_totals(
    batch: MicroBatch[Tensor], statistics: TokenStatistics, settings: ObjectiveSettings
) -> tuple[Tensor, Tensor]:
    """What the micro-batch adds to its minibatch's loss (a scalar with gradient), and its totals for `add_totals`."""
    proximal = statistics.logprobs.detach() if batch.proximal_logprobs is None else batch.proximal_logprobs
    cap = settings.resolved_importance_cap
    weights = importance_weights(proximal, batch.behavior_logprobs, cap)
    tokens = TokenBatch(
        policy_logprobs=statistics.logprobs,
        old_logprobs=proximal if settings.old == "proximal" else batch.behavior_logprobs,
        importance_weights=weights,
        advantages=batch.advantages,
        samples=batch.rollouts,
    )
    low, high = settings.resolved_clip
    token_loss = SURROGATES[settings.loss](tokens, Clip(low=low, high=high))
    loss = (token_loss.loss * batch.token_weights).sum()
    return loss, _totals(batch, statistics, token_loss, proximal, cap)


def add_totals(totals: list[Tensor]) -> LearningTotals:
    """The totals of a minibatch from those of its micro-batches; waits for the device, to copy them from it."""
    stacked = torch.stack(totals)
    sums = dict(zip(_SUMS, stacked[:, :-1].sum(dim=0).tolist(), strict=True))
    return LearningTotals(**sums, weight_max=float(stacked[:, -1].max()))


@torch.no_grad()
def _totals(
    batch: MicroBatch[Tensor], statistics: TokenStatistics, token_loss: TokenLoss, proximal: Tensor, cap: float | None
) -> Tensor:
    log_ratio = (proximal - batch.behavior_logprobs).clamp(max=MAX_LOG_RATIO)
    raw = torch.exp(log_ratio)
    weights = torch.ones_like(raw) if cap is None else raw.clamp(max=cap)
    mismatch = raw - 1 - log_ratio
    lagged = batch.lagged.float()
    rows = {
        "tokens": torch.ones_like(raw),
        "entropy": statistics.entropies,
        "clipped_low": token_loss.clipped_low.float(),
        "clipped_high": token_loss.clipped_high.float(),
        "weight": weights,
        "capped": torch.zeros_like(raw) if cap is None else (raw > cap).float(),
        "raw_weight": raw,
        "raw_weight_squared": raw.square(),
        "tokens_lag_0": 1 - lagged,
        "mismatch_lag_0": mismatch * (1 - lagged),
        "tokens_lagged": lagged,
        "mismatch_lagged": mismatch * lagged,
    }
    # One tensor: the sums are one kernel, and one copy per minibatch brings them to the host.
    sums = torch.stack([rows[name] for name in _SUMS]).double().sum(dim=1)
    return torch.cat([sums, weights.max().double()[None]])
