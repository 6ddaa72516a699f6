"""Puts the loss of one micro-batch together, and the totals that a step reports of it."""

from dataclasses import fields

import torch
from torch import Tensor

from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.corrections import Importance, importance
from rollstream.training.learning.losses import KL_LOSSES, MAX_LOG_RATIO, SURROGATES, Clip, TokenBatch, TokenLoss
from rollstream.training.learning.objective_settings import ObjectiveSettings
from rollstream.training.learning.packing import MicroBatch
from rollstream.training.learning.policy_forward import TokenStatistics
from rollstream.training.learning.step_metrics import LearningTotals

_SUMS = tuple(field.name for field in fields(LearningTotals) if field.name != "weight_max")


def loss_and_totals(
    batch: MicroBatch[Tensor], statistics: TokenStatistics, settings: ObjectiveSettings
) -> tuple[Tensor, Tensor]:
    """What the micro-batch adds to its minibatch's loss (a scalar with gradient), and its totals for `add_totals`."""
    proximal = statistics.logprobs.detach() if batch.proximal_logprobs is None else batch.proximal_logprobs
    # What SFT imitates was not sampled by a policy.
    behavior = proximal if settings.loss == "nll" else batch.behavior_logprobs
    correction, bounds = settings.resolved_correction, settings.resolved_importance
    corrected = importance(correction, proximal - behavior, batch.rollouts, bounds)
    tokens = TokenBatch(
        policy_logprobs=statistics.logprobs,
        old_logprobs=proximal if settings.old == "proximal" else behavior,
        importance_weights=corrected.weights,
        advantages=batch.advantages,
        rollouts=batch.rollouts,
    )
    low, high = settings.resolved_clip
    token_loss = SURROGATES[settings.loss](tokens, Clip(low=low, high=high, dual=settings.dual_clip))
    loss = (_regularized(token_loss.loss, batch, statistics, settings) * batch.token_weights).sum()
    bonus = settings.entropy_coefficient * statistics.entropies * batch.token_weights
    return loss, _totals(batch, statistics, token_loss, corrected, bonus)


def _regularized(
    loss: Tensor, batch: MicroBatch[Tensor], statistics: TokenStatistics, settings: ObjectiveSettings
) -> Tensor:
    """[N] the surrogate's loss [N] with the KL term and the entropy bonus, if any.

    Both are as they are whatever the importance weight is, as in TRL.
    """
    if settings.kl_loss_coefficient:
        if batch.reference_logprobs is None:
            raise ConfigurationError(
                f"kl_coefficient {settings.kl_coefficient} without a reference model: give the learner one, or set "
                "kl_coefficient to 0"
            )
        estimator = settings.resolved_kl_estimator
        loss = loss + settings.kl_coefficient * KL_LOSSES[estimator](statistics.logprobs - batch.reference_logprobs)
    if settings.entropy_coefficient:
        loss = loss - settings.entropy_coefficient * statistics.entropies
    return loss


def add_totals(totals: list[Tensor]) -> LearningTotals:
    """The totals of a minibatch from those of its micro-batches; waits for the device, to copy them from it."""
    stacked = torch.stack(totals)
    sums = dict(zip(_SUMS, stacked[:, :-1].sum(dim=0).tolist(), strict=True))
    return LearningTotals(**sums, weight_max=float(stacked[:, -1].max()))


@torch.no_grad()
def _totals(
    batch: MicroBatch[Tensor], statistics: TokenStatistics, token_loss: TokenLoss, corrected: Importance, bonus: Tensor
) -> Tensor:
    log_ratio = corrected.log_ratio.clamp(max=MAX_LOG_RATIO)
    raw = torch.exp(log_ratio)
    mismatch = raw - 1 - log_ratio
    lagged = batch.lagged.float()
    reference = statistics.logprobs if batch.reference_logprobs is None else batch.reference_logprobs
    rows = {
        "tokens": torch.ones_like(raw),
        "entropy": statistics.entropies,
        "clipped_low": token_loss.clipped_low.float(),
        "clipped_high": token_loss.clipped_high.float(),
        "weight": corrected.weights,
        "capped": corrected.is_capped.float(),
        "masked": corrected.is_masked.float(),
        "raw_weight": raw,
        "raw_weight_squared": raw.square(),
        "tokens_lag_0": 1 - lagged,
        "mismatch_lag_0": mismatch * (1 - lagged),
        "tokens_lagged": lagged,
        "mismatch_lagged": mismatch * lagged,
        "kl": KL_LOSSES["k3"](statistics.logprobs - reference),
        "entropy_bonus": bonus,
    }
    # One tensor: the sums are one kernel, and one copy per minibatch brings them to the host.
    sums = torch.stack([rows[name] for name in _SUMS]).double().sum(dim=1)
    return torch.cat([sums, corrected.weights.max().double()[None]])
