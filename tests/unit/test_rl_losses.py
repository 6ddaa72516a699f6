"""The losses over logits, by hand: two samples, three places, a vocabulary of two."""

import math

import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.training.learning.plan import Minibatch
from tests.harness.late import Late
from tests.harness.learners import a_learner, a_sample

torch = Late("torch")
rl_losses = Late("rollstream.training.rl_losses")


def some_logits(probabilities):
    """[B, L, 2] float64, which give token 1 these probabilities."""
    chosen = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([(1 - chosen).log(), chosen.log()], dim=-1).requires_grad_()


PROBABILITIES = [[0.9, 0.5, 0.25], [0.1, 0.8, 0.3]]
LABELS = [[1, 1, 0], [1, 0, -100]]
"""The probability of each label: 0.9, 0.5, 0.75; 0.1, 0.2, and padding."""
ADVANTAGES = [2.0, -1.0]


def arguments(mask, labels=LABELS, advantages=ADVANTAGES):
    return {
        "logits": some_logits(PROBABILITIES),
        "labels": torch.tensor(labels),
        "loss_mask": torch.tensor(mask, dtype=torch.float32),
        "advantages": torch.tensor(advantages, dtype=torch.float64),
    }


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        # One token of each sample.
        ([[0, 1, 0], [0, 1, 0]], -(2 * math.log(0.5) - math.log(0.2)) / 2),
        # Two tokens of the first, two of the second: the mean of each.
        ([[0, 1, 1], [1, 1, 0]], -(2 * math.log(0.5 * 0.75) / 2 - math.log(0.1 * 0.2) / 2) / 2),
        # Nothing of the second, which still counts as a sample.
        ([[0, 1, 1], [0, 0, 0]], -(2 * math.log(0.5 * 0.75) / 2) / 2),
    ],
)
def test_grpo_loss_is_minus_the_mean_of_log_prob_times_advantage(mask, expected):
    values = arguments(mask)
    loss = rl_losses.grpo_loss(**values)
    assert loss.item() == pytest.approx(expected)
    assert loss.dtype is torch.float64
    loss.backward()
    lost = values["logits"].grad.abs().sum(dim=-1) == 0
    assert lost.tolist() == [[not one for one in row] for row in mask]


MASK = [[0, 1, 1], [1, 1, 0]]


def old_log_probs(ratios):
    return torch.tensor([[0.9, 0.5, 0.75], [0.1, 0.2, 1.0]], dtype=torch.float64).log() - ratios.log()


def test_ppo_loss_clips_the_ratio_of_each_token():
    # Ratios of the first sample, A = 2: 1.1 and 1.5, clipped at 1.2. Of the second, A = -1: 0.5, clipped at 0.8, and 3.
    ratios = torch.tensor([[1.0, 1.1, 1.5], [0.5, 3.0, 1.0]], dtype=torch.float64)
    values = arguments(MASK)
    loss = rl_losses.ppo_loss(**values, old_log_probs=old_log_probs(ratios), clip_range=0.2)
    assert loss.item() == pytest.approx(-((2 * 1.1 + 2 * 1.2) / 2 + (-0.8 - 3.0) / 2) / 2)
    loss.backward()
    lost = values["logits"].grad.abs().sum(dim=-1) == 0
    assert lost.tolist() == [[True, False, True], [True, False, True]]


def test_at_ratio_one_ppo_has_the_gradient_of_grpo():
    ppo, grpo = arguments(MASK), arguments(MASK)
    rl_losses.ppo_loss(**ppo, old_log_probs=old_log_probs(torch.ones(2, 3, dtype=torch.float64))).backward()
    rl_losses.grpo_loss(**grpo).backward()
    torch.testing.assert_close(ppo["logits"].grad, grpo["logits"].grad)


@pytest.mark.parametrize("name", ["labels", "loss_mask", "advantages", "old_log_probs"])
def test_a_shape_that_does_not_fit_is_named_with_the_one_that_would(name):
    values = {**arguments(MASK), "old_log_probs": torch.zeros(2, 3)}
    values[name] = values[name][:1]
    with pytest.raises(ValueError, match=rf"{name} has shape \(1,.*\(2,"):
        rl_losses.ppo_loss(**values)


@pytest.mark.parametrize("clip_range", [0.0, -0.2, 1.0, math.nan])
def test_a_clip_range_that_bounds_nothing_is_refused(clip_range):
    with pytest.raises(ValueError, match=f"clip_range {clip_range} .*above 0 and below 1"):
        rl_losses.ppo_loss(**arguments(MASK), old_log_probs=torch.zeros(2, 3), clip_range=clip_range)


def test_the_gradient_is_that_of_the_learner_for_the_same_batch(tmp_path):
    write_tiny_model(tmp_path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    learner = a_learner(tmp_path, dtype="float64", loss="grpo", correction="none")
    samples = [a_sample(index, prompt=5, completion=4) for index in range(3)]
    learner.forward_backward(learner.pack(Minibatch.of(samples, "grpo")))
    expected = [parameter.grad.clone() for parameter in learner.model.parameters()]
    learner.model.zero_grad()

    ids = torch.tensor([[*sample.prompt_token_ids, *sample.token_ids] for sample in samples])
    loss = rl_losses.grpo_loss(
        logits=learner.model(input_ids=ids[:, :-1]).logits,
        labels=ids[:, 1:],
        loss_mask=torch.tensor([[0.0] * 4 + [1.0] * 4] * 3),
        advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float64),
    )
    loss.backward()
    for parameter, one in zip(learner.model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, one, atol=1e-9, rtol=0)
