"""Surrogates and normalizations by hand; their gradients are compared with TRL's in `tests/reference`."""

import math
from functools import cache
from typing import get_args

import numpy as np
import pytest

from rollstream.training.learning.normalization import token_weights
from rollstream.training.learning.objective_settings import PolicyLossName
from tests.harness.late import Late

torch = Late("torch")
losses = Late("rollstream.training.learning.losses")

LOSSES = get_args(PolicyLossName)


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
        rollouts=rows,
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


def test_nll_is_minus_the_logprob_whatever_advantage_weight_and_ratio_are():
    batch = a_batch([1.5, 0.5], [2.0, -2.0], weights=[0.5, 3.0])
    expected = [-math.log(0.75), -math.log(0.25)]
    assert losses.nll(batch, clip()).loss.tolist() == pytest.approx(expected)
    torch.testing.assert_close(gradient(losses.nll, batch), torch.tensor([-1.0, -1.0]).double())


@pytest.mark.parametrize(
    ("normalization", "alone", "beside_truncated"),
    [
        ("dapo", [1 / 8, 1 / 8], [1 / 8, 1 / 8]),  # 2 + 6 tokens: the truncated samples have none
        ("grpo", [1 / 4, 1 / 12], [1 / 8, 1 / 24]),  # half, or of four samples a quarter, of each sequence's mean
        ("dr_grpo", [1 / 24, 1 / 24], [1 / 48, 1 / 48]),  # two, or four, samples of at most 12 tokens
    ],
)
def test_each_normalization_weighs_tokens_as_its_paper_says(normalization, alone, beside_truncated):
    for rollouts, num_tokens, expected in (
        ([0, 1], [2, 6], alone),
        ([0, 1, 2, 3], [2, 6, 0, 0], beside_truncated),
        # The second rollout is three samples, one of which does not train. It counts once.
        ([0, 1, 1, 1], [2, 1, 0, 5], [*alone, alone[1], alone[1]]),
        ([3, 1, 1, 0, 2, 0], [2, 1, 5, 0, 0, 0], [*beside_truncated, beside_truncated[1]]),
    ):
        found = token_weights(np.array(num_tokens), np.full(len(num_tokens), 12), np.array(rollouts), normalization)
        np.testing.assert_allclose(found[: len(expected)], expected)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_token_that_was_nearly_impossible_when_it_was_sampled_leaves_loss_and_gradient_finite(name, advantage):
    policy = torch.tensor([-1.0], requires_grad=True)
    batch = losses.TokenBatch(
        policy_logprobs=policy,
        old_logprobs=torch.tensor([-3e38]),
        importance_weights=torch.ones(1),
        advantages=torch.tensor([advantage]),
        rollouts=torch.tensor([0]),
    )
    loss = losses.SURROGATES[name](batch, clip()).loss.sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(policy.grad).all()
