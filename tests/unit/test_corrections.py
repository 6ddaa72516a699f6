"""By hand: corrections for off-policy tokens, dual clip, KL to a reference and entropy bonus; then through a model."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late
from tests.harness.learners import a_learner, a_sample, eight_samples, train_step, weights_of

torch = Late("torch")
corrections = Late("rollstream.training.learning.corrections")
losses = Late("rollstream.training.learning.losses")
policy_forward = Late("rollstream.training.learning.policy_forward")
reference_module = Late("rollstream.training.learning.reference")


def as_tensor(values):
    return torch.tensor(values, dtype=torch.float64)


RATIOS = [0.4, 0.6, 4.0, 6.0, 2.0, 0.25]
ROLLOUTS = [0, 0, 1, 1, 2, 2]  # their ratios: 0.24, 24, 0.5


@pytest.mark.parametrize(
    ("correction", "bounds", "weights", "capped", "masked"),
    [
        ("none", (0.0, math.inf), [1.0] * 6, [], []),
        ("token", (0.0, 2.0), [0.4, 0.6, 2.0, 2.0, 2.0, 0.25], [2, 3], []),
        ("sequence", (0.0, 3.0), [0.24, 0.24, 3.0, 3.0, 0.5, 0.5], [2, 3], []),
        ("icepop", (0.5, 5.0), [0.0, 0.6, 4.0, 0.0, 2.0, 0.0], [], [0, 3, 5]),
        ("mask_sequence", (0.0, 3.0), [0.24, 0.24, 0.0, 0.0, 0.5, 0.5], [], [2, 3]),
        ("mask_sequence", (0.25, 3.0), [0.0, 0.0, 0.0, 0.0, 0.5, 0.5], [], [0, 1, 2, 3]),
    ],
)
def test_each_correction_weighs_tokens_as_it_says(correction, bounds, weights, capped, masked):
    found = corrections.importance(correction, as_tensor(RATIOS).log(), torch.tensor(ROLLOUTS), bounds)
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.weights.dtype is torch.float64
    assert found.is_capped.nonzero().flatten().tolist() == capped
    assert found.is_masked.nonzero().flatten().tolist() == masked


@pytest.mark.parametrize("correction", ["token", "sequence", "icepop", "mask_sequence"])
def test_a_ratio_that_no_number_can_hold_leaves_the_weight_finite(correction):
    found = corrections.importance(correction, torch.tensor([3e38, -3e38]), torch.tensor([0, 1]), (0.5, 2.0))
    assert torch.isfinite(found.weights).all()


def a_batch(ratios, advantages, weights=None):
    old = as_tensor([math.log(0.1)] * len(ratios))
    return losses.TokenBatch(
        policy_logprobs=(old + as_tensor(ratios).log()).requires_grad_(),
        old_logprobs=old,
        importance_weights=as_tensor(weights or [1.0] * len(ratios)),
        advantages=as_tensor(advantages),
        rollouts=torch.arange(len(ratios)),
    )


def test_reinforce_is_minus_weight_times_advantage_times_logprob():
    batch = a_batch([1.0, 2.0], [2.0, -1.0], weights=[0.5, 3.0])
    loss = losses.reinforce(batch, losses.Clip(low=1.0, high=math.inf)).loss
    assert loss.tolist() == pytest.approx([-0.5 * 2 * math.log(0.1), 3 * math.log(0.2)])
    loss.sum().backward()
    assert batch.policy_logprobs.grad.tolist() == [-1.0, 3.0]


def test_dual_clip_bounds_the_loss_of_a_bad_sample_that_became_likely():
    # A = -2, c = 3: at ratio 2 the loss is r·2, at 3 and above c·2, and has no gradient. Good samples are as before.
    batch = a_batch([2.0, 4.0, 9.0, 4.0], [-2.0, -2.0, -1.0, 2.0])
    found = losses.clipped(batch, losses.Clip(low=0.2, high=0.28, dual=3.0))
    assert found.loss.tolist() == pytest.approx([4.0, 6.0, 3.0, -2.56])
    assert found.clipped_high.tolist() == [False, True, True, True]
    found.loss.sum().backward()
    assert batch.policy_logprobs.grad.tolist() == pytest.approx([4.0, 0.0, 0.0, 0.0])


def test_kl_estimates_and_their_gradients_are_those_of_schulmans_note():
    difference = as_tensor([math.log(2), -math.log(4), 0.0]).requires_grad_()
    assert losses.k2(difference).tolist() == pytest.approx([math.log(2) ** 2 / 2, math.log(4) ** 2 / 2, 0.0])
    assert losses.k3(difference).tolist() == pytest.approx([0.5 - 1 + math.log(2), 4 - 1 - math.log(4), 0.0])
    (of_k2,) = torch.autograd.grad(losses.k2(difference).sum(), difference)
    (of_k3,) = torch.autograd.grad(losses.k3(difference).sum(), difference)
    assert of_k2.tolist() == pytest.approx([math.log(2), -math.log(4), 0.0])
    assert of_k3.tolist() == pytest.approx([0.5, -3.0, 0.0])


def test_k3_never_leads_away_from_the_reference_however_far_the_policy_is_from_it():
    difference = as_tensor([-25.0, -400.0]).requires_grad_()
    found = losses.k3(difference)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert (difference.grad <= 0).all()


@pytest.mark.parametrize(("estimator", "direction"), [("k1", None), ("k2", "policy"), ("k3", "reference")])
def test_over_the_policys_tokens_k1_has_no_gradient_as_a_loss_and_k2_has_that_of_the_divergence(estimator, direction):
    """All three tokens of a small vocabulary, each as often as the policy samples it."""
    logits = as_tensor([0.3, -1.0, 0.5]).requires_grad_()
    policy, reference = logits.log_softmax(0), as_tensor([0.2, 0.5, 0.3]).log()
    estimates = {"k1": lambda difference: difference, **losses.KL_LOSSES}[estimator](policy - reference)
    (found,) = torch.autograd.grad((policy.exp().detach() * estimates).sum(), logits, retain_graph=True)
    divergence = {
        None: 0 * policy.sum(),
        "policy": (policy.exp() * (policy - reference)).sum(),
        "reference": (reference.exp() * (reference - policy)).sum(),
    }[direction]
    (expected,) = torch.autograd.grad(divergence, logits)
    torch.testing.assert_close(found, expected)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def gradient_of(learner, samples):
    loss = learner.forward_backward(learner.pack(Minibatch.of(samples, learner.settings.resolved_normalization)))
    return float(loss), [parameter.grad.clone() for parameter in learner.model.parameters()]


def full_logits(model, sample):
    """Logprobs of all tokens of the vocabulary where the sample's tokens are predicted, [T, V]."""
    ids = torch.tensor([[*sample.prompt_token_ids, *sample.token_ids]])
    logits = model(input_ids=ids).logits[0, len(sample.prompt_token_ids) - 1 : -1] / sample.temperature
    return torch.log_softmax(logits, dim=-1)


@pytest.mark.parametrize("chunk", [1 << 27, 200])
def test_the_entropy_bonus_has_the_gradient_of_the_full_logits_also_across_chunks(chunk, model_path, monkeypatch):
    monkeypatch.setattr(policy_forward, "CHUNK_LOGITS", chunk)
    learner = a_learner(model_path, dtype="float64", loss="reinforce", entropy_coefficient=0.3)
    report = train_step(a_learner(model_path, entropy_coefficient=0.3), eight_samples(), step=0)
    assert report.metrics["entropy_bonus"] == pytest.approx(0.3 * report.metrics["entropy"])
    samples = [replace(one, temperature=0.7) for one in eight_samples()]
    loss, found = gradient_of(learner, samples)

    model = copy.deepcopy(learner.model)
    model.zero_grad()
    expected = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        logprobs = full_logits(model, sample)
        chosen = logprobs.gather(1, torch.tensor(sample.token_ids, dtype=torch.int64)[:, None]).squeeze(1)
        weight = torch.exp(chosen.detach() - torch.tensor(sample.behavior_logprobs)).clamp(max=2.0)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        expected = expected - (weight * sample.advantage * chosen + 0.3 * entropy).sum()
    expected = expected / sum(sample.num_trained_tokens for sample in samples)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-9)
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-9, rtol=0)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_to_a_reference_model_enters_the_loss_of_every_token(estimator, model_path, tmp_path):
    write_tiny_model(tmp_path, seed=1, hidden=32, layers=2, heads=2, ffn=64)
    options = {"dtype": "float64", "loss": "reinforce", "kl_coefficient": 0.5, "kl_estimator": estimator}
    learner = a_learner(model_path, reference_path=tmp_path, **options)
    samples = [replace(one, advantage=0.0) for one in eight_samples()]
    samples = reference_module.with_reference_logprobs(learner, samples)
    loss, found = gradient_of(learner, samples)

    model = copy.deepcopy(learner.model)
    model.zero_grad()
    expected = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        tokens = torch.tensor(sample.token_ids, dtype=torch.int64)[:, None]
        policy = full_logits(model, sample).gather(1, tokens)
        reference = full_logits(learner.reference.model, sample).gather(1, tokens).detach()
        np.testing.assert_allclose(sample.reference_logprobs, reference[:, 0].numpy(), atol=1e-9)
        expected = expected + 0.5 * losses.KL_LOSSES[estimator](policy - reference).sum()
    expected = expected / sum(sample.num_trained_tokens for sample in samples)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-9)
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-9, rtol=0)


def test_without_kl_coefficient_no_reference_is_loaded_and_with_it_the_policys_own_model_is(model_path):
    assert a_learner(model_path).reference is None
    learner = a_learner(model_path, kl_coefficient=0.1)
    samples = reference_module.with_reference_logprobs(learner, eight_samples())
    first, second = (train_step(learner, samples, step=step).metrics["kl"] for step in (0, 1))
    assert first == 0 < second


def test_a_kl_coefficient_without_a_reference_names_both(model_path):
    learner = a_learner(model_path, kl_coefficient=0.1)
    with pytest.raises(ConfigurationError, match=r"kl_coefficient 0.1 .*reference"):
        train_step(learner, eight_samples(), step=0)


def test_a_reference_with_another_tokenizer_is_refused(model_path, tmp_path):
    write_tiny_model(tmp_path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    (tmp_path / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text() + "\n ")
    with pytest.raises(ConfigurationError, match=f"{tmp_path}.*tokenizer.*reference_path"):
        a_learner(model_path, kl_coefficient=0.1, reference_path=tmp_path)


def test_a_reference_that_is_no_model_is_refused_by_its_option(model_path, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{tmp_path}.*config.json.*reference_path"):
        a_learner(model_path, kl_coefficient=0.1, reference_path=tmp_path)


def test_a_sample_that_the_reference_cannot_take_is_out_of_bounds(model_path, tmp_path):
    write_tiny_model(tmp_path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 100}))
    assert a_learner(model_path, kl_coefficient=0.1, reference_path=tmp_path).bounds.max_tokens == 100


@pytest.mark.parametrize("named", [True, False])
def test_after_a_restart_the_reference_is_the_model_that_training_began_with(model_path, tmp_path, named):
    options = {"kl_coefficient": 0.1, **({"reference_path": model_path} if named else {})}
    learner = a_learner(model_path, **options)
    for step in range(2):
        train_step(learner, reference_module.with_reference_logprobs(learner, eight_samples()), step=step)
    learner.save_state(tmp_path)
    again = a_learner(model_path, **options)
    again.load_state(tmp_path)
    policy, reference = (weights_of(one, tmp_path / name) for one, name in ((again, "a"), (again.reference, "b")))
    assert torch.equal(policy, weights_of(learner, tmp_path / "c"))
    assert torch.equal(reference, weights_of(a_learner(model_path), tmp_path / "d"))
    assert not torch.equal(policy, reference)


def test_kl_in_the_reward_lowers_it_by_the_log_ratio_of_the_whole_rollout(model_path, tmp_path):
    write_tiny_model(tmp_path, seed=1, hidden=32, layers=2, heads=2, ffn=64)
    learner = a_learner(model_path, kl_coefficient=0.5, kl_in="reward", advantages="constant", reference_path=tmp_path)
    rollout = [a_sample(index, rollout_id="one", reward=2.0) for index in range(2)]
    other = a_sample(2, rollout_id="other", reward=1.0, loss_mask=np.array([True, False, True, False]))
    found = reference_module.prepared(learner, [*rollout, other])
    ratios = [one.behavior_logprobs - one.reference_logprobs for one in found]
    assert found[0].advantage == found[1].advantage == pytest.approx(2.0 - 0.5 * (ratios[0].sum() + ratios[1].sum()))
    assert found[2].advantage == pytest.approx(1.0 - 0.5 * ratios[2][[0, 2]].sum())


@pytest.mark.parametrize(
    ("correction", "metric"),
    [("sequence", "importance_weight_capped_ratio"), ("icepop", "importance_weight_masked_ratio")],
)
def test_a_step_reports_which_tokens_its_correction_bounded(correction, metric, model_path):
    report = train_step(a_learner(model_path, correction=correction, importance_cap=1.0), eight_samples(), step=0)
    assert 0 < report.metrics[metric] < 1
    assert LearningSettings(correction=correction).resolved_correction == correction
