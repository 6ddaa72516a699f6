"""Surrogates and normalizations against numbers worked by hand; `test_losses_reference.py` has whole steps."""

import math
from functools import cache
from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError

from rollstream.trainer.learning.normalization import token_weights
from rollstream.trainer.learning.settings import LearningSettings, LossName
from tests.harness.late import Late

torch = Late("torch")
losses = Late("rollstream.trainer.learning.losses")

LOSSES = get_args(LossName)


@cache
def clip():
    return losses.Clip(low=0.2, high=0.28)


def a_batch(ratios, advantages, *, samples=None, weights=None):
    """Tokens with the given ratios to an old policy whose logprobs are all log 0.5."""
    old = torch.full((len(ratios),), math.log(0.5), dtype=torch.float64)
    rows = torch.tensor(samples if samples is not None else range(len(ratios)))
    return losses.TokenBatch(
        policy_logprobs=(old + torch.log(torch.tensor(ratios, dtype=torch.float64))).requires_grad_(),
        old_logprobs=old,
        importance_weights=torch.tensor(weights or [1.0] * len(ratios), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        samples=rows,
    )


def gradient(surrogate, batch):
    surrogate(batch, clip()).loss.sum().backward()
    return batch.policy_logprobs.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.1, 2.0, -2.2),  # inside the trust region: r·A
        (1.5, 2.0, -2.56),  # clipped at 1.28
        (0.5, 2.0, -1.0),  # low ratio, good sample: the unclipped term is the smaller one
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # high ratio, bad sample: unclipped
    ],
)
def test_the_clipped_loss_is_the_pessimistic_one_of_two(ratio, advantage, loss):
    assert losses.clipped(a_batch([ratio], [advantage]), clip()).loss.item() == pytest.approx(loss)


def test_clip_fractions_count_the_tokens_that_lost_their_gradient():
    batch = a_batch([1.5, 1.5, 0.5, 0.5, 1.0], [1.0, -1.0, 1.0, -1.0, 1.0])
    token_loss = losses.clipped(batch, clip())
    assert token_loss.clipped_high.tolist() == [True, False, False, False, False]
    assert token_loss.clipped_low.tolist() == [False, False, False, True, False]
    lost = gradient(losses.clipped, batch) == 0
    assert lost.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_every_loss_has_the_gradient_of_the_policy_gradient(name):
    # d/dlogp of -w·r·A at r = 1 is -w·A.
    batch = a_batch([1.0, 1.0, 1.0], [2.0, -1.0, 0.5], weights=[1.0, 1.5, 0.25])
    torch.testing.assert_close(gradient(losses.SURROGATES[name], batch), torch.tensor([-2.0, 1.5, -0.125]).double())


def test_gspo_clips_the_geometric_mean_ratio_of_the_sequence():
    # Sequence 0: sqrt(2 · 0.5) = 1, so nothing is clipped; sequence 1: sqrt(2 · 2) = 2, clipped at 1.28.
    token_loss = losses.gspo(a_batch([2.0, 0.5, 2.0, 2.0], [1.0] * 4, samples=[0, 0, 1, 1]), clip())
    torch.testing.assert_close(token_loss.loss.detach(), torch.tensor([-1.0, -1.0, -1.28, -1.28]).double())
    assert token_loss.clipped_high.tolist() == [False, False, True, True]


def test_cispo_bounds_the_weight_but_keeps_the_gradient_of_every_token():
    batch = a_batch([1.5, 0.5], [2.0, 2.0])
    torch.testing.assert_close(gradient(losses.cispo, batch), torch.tensor([-2.56, -1.0]).double())


@pytest.mark.parametrize(
    ("normalization", "alone", "beside_truncated"),
    [
        ("dapo", [1 / 8, 1 / 8], [1 / 8, 1 / 8]),  # 2 + 6 tokens: the truncated samples have none
        ("grpo", [1 / 4, 1 / 12], [1 / 8, 1 / 24]),  # half, or of four samples a quarter, of each sequence's mean
        ("dr_grpo", [1 / 24, 1 / 24], [1 / 48, 1 / 48]),  # two, or four, samples of at most 12 tokens
    ],
)
def test_each_normalization_weighs_tokens_as_its_paper_says(normalization, alone, beside_truncated):
    np.testing.assert_allclose(token_weights(np.array([2, 6]), np.array([12, 12]), normalization), alone)
    with_truncated = token_weights(np.array([2, 6, 0, 0]), np.array([12, 12, 12, 12]), normalization)
    np.testing.assert_allclose(with_truncated[:2], beside_truncated)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_token_that_was_nearly_impossible_when_it_was_sampled_leaves_loss_and_gradient_finite(name, advantage):
    policy = torch.tensor([-1.0], requires_grad=True)
    batch = losses.TokenBatch(
        policy_logprobs=policy,
        old_logprobs=torch.tensor([-3e38]),
        importance_weights=torch.ones(1),
        advantages=torch.tensor([advantage]),
        samples=torch.tensor([0]),
    )
    loss = losses.SURROGATES[name](batch, clip()).loss.sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(policy.grad).all()


@pytest.mark.parametrize(
    ("loss", "normalization", "clip"),
    [
        ("ppo", "dapo", (0.2, 0.2)), ("grpo", "grpo", (0.2, 0.2)), ("dr_grpo", "dr_grpo", (0.2, 0.2)),
        ("dapo", "dapo", (0.2, 0.28)), ("gspo", "grpo", (3e-4, 4e-4)), ("cispo", "dapo", (1.0, 4.0)),
    ],
)  # fmt: skip
def test_each_loss_brings_normalization_and_clip_range_of_its_paper_unless_the_settings_name_one(
    loss, normalization, clip
):
    assert LearningSettings(loss=loss).resolved_normalization == normalization
    assert LearningSettings(loss=loss, normalization="dr_grpo").resolved_normalization == "dr_grpo"
    assert LearningSettings(loss=loss).resolved_clip == clip
    assert LearningSettings(loss=loss, clip_high=0.1).resolved_clip == (clip[0], 0.1)
    assert LearningSettings(loss=loss, clip_low=0.1).resolved_clip == (0.1, clip[1])


def test_correcting_for_lag_twice_is_refused():
    assert LearningSettings(old="behavior").resolved_importance_cap is None
    assert LearningSettings().resolved_importance_cap == 2.0
    with pytest.raises(ValidationError, match="twice"):
        LearningSettings(old="behavior", importance_cap=2.0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"schedule": "cosine"}, "the other schedules need them"),
        ({"schedule_steps": 100}, "a constant learning rate has no schedule_steps"),
        ({"schedule": "linear", "schedule_steps": 10, "warmup_steps": 10}, "schedule_steps 10 must be above warmup"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        LearningSettings(**schedule)
