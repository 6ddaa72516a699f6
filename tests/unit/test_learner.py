"""The learner on a tiny real model, and AdamW as it uses it."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.training.learning.bounds import ModelBounds
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late
from tests.harness.learners import a_learner, a_sample, eight_samples, train_step, weights_of

torch = Late("torch")
transformers = Late("transformers")
hidden_states = Late("rollstream.training.learning.hidden_states")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


@pytest.mark.parametrize("normalization", ["dapo", "grpo", "dr_grpo"])
def test_the_step_does_not_depend_on_how_samples_are_split_into_micro_batches(model_path, tmp_path, normalization):
    reports, weights = [], []
    for budget in (1, 40, 10_000):  # one sample each, by budget, all at once
        learner = a_learner(model_path, tokens_per_microbatch=budget, normalization=normalization)
        reports.append(train_step(learner, eight_samples(), step=0))
        weights.append(weights_of(learner, tmp_path / f"{budget}"))
    assert reports[0].num_updates == 1
    for report, after in zip(reports[1:], weights[1:], strict=True):
        assert report.loss == pytest.approx(reports[0].loss, abs=1e-6)
        assert report.grad_norm == pytest.approx(reports[0].grad_norm, rel=1e-4)
        assert report.metrics == pytest.approx(dict(reports[0].metrics), rel=1e-4, abs=1e-6)
        torch.testing.assert_close(after, weights[0], atol=2e-5, rtol=0)


def three_groups():
    """Samples of 3 groups, whose prompts and completions differ in length; one completion is a single token."""
    prompts = [np.arange(3, 3 + length, dtype=np.int32) for length in (9, 4, 6)]
    return [
        a_sample(index, prompt_token_ids=prompts[index % 3], completion=1 + index % 5, group_id=f"group-{index % 3}")
        for index in range(18)
    ]


@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_prompt_that_is_computed_once_for_its_group_gives_the_same_step(model_path, tmp_path, budget, minibatches):
    settings = {"minibatches": minibatches, "tokens_per_microbatch": budget, "learning_rate": 1e-4}
    samples = three_groups()
    reports, weights = [], []
    for share in (True, False):
        learner = a_learner(model_path, share_prompts=share, **settings)
        reports.append(train_step(learner, samples, step=0))
        weights.append(weights_of(learner, tmp_path / f"{share}"))
    assert reports[0].loss == pytest.approx(reports[1].loss, abs=1e-6)
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-5)
    assert reports[0].metrics == pytest.approx(dict(reports[1].metrics), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=0)


def test_a_model_that_keeps_a_sliding_window_of_its_tokens_shares_no_prompts(model_path):
    device = torch.device("cpu")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    assert hidden_states.can_share_prompts(model, device)
    config = model.config
    config.sliding_window, config.use_sliding_window = 4, True
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    assert not hidden_states.can_share_prompts(transformers.AutoModelForCausalLM.from_config(config), device)


@pytest.mark.parametrize("share", [True, False])
def test_samples_that_begin_alike_give_the_loss_and_the_gradient_that_they_give_one_by_one(model_path, share):
    prompt, answer = np.arange(3, 9, dtype=np.int32), np.array([11, 7, 5, 9], dtype=np.int32)
    answers = [answer, answer[:2], answer, np.array([11, 8], dtype=np.int32), answer[:1], answer[:3]]
    samples = [
        a_sample(index, prompt_token_ids=prompt, completion=len(one), token_ids=one)
        for index, one in enumerate(answers)
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    losses = []
    for sample in samples:
        logprobs = logprobs_of(model, sample)
        weights = (logprobs.detach() - torch.from_numpy(sample.behavior_logprobs)).exp().clamp(max=2.0)
        losses.append(-sample.advantage * weights * (logprobs - logprobs.detach()).exp())
    loss = torch.cat(losses).mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    report = train_step(a_learner(model_path, share_prompts=share), samples, step=0)
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    assert report.grad_norm == pytest.approx(norm.item(), rel=1e-5)


def logprobs_of(model, sample):
    """Logprobs of the sampled tokens by the plain forward pass of transformers."""
    ids = torch.from_numpy(np.concatenate([sample.prompt_token_ids, sample.token_ids])).long()
    start = len(sample.prompt_token_ids)
    logits = model(ids[None]).logits[0] / sample.temperature
    return torch.log_softmax(logits, dim=-1)[start - 1 : -1].gather(1, ids[start:, None]).squeeze(1)


def teacher_forced(model_path, sample):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    with torch.no_grad():
        return logprobs_of(model, sample).numpy()


def test_several_minibatches_update_as_often_and_the_later_ones_see_a_ratio_away_from_one(model_path):
    learner = a_learner(model_path, minibatches=4, learning_rate=0.05, max_grad_norm=100.0)
    report = train_step(learner, eight_samples(), step=0)
    assert report.num_updates == 4
    assert not report.skipped
    assert report.metrics["clip_fraction_low"] + report.metrics["clip_fraction_high"] > 0
    assert report.metrics["trained_tokens"] == sum(sample.num_trained_tokens for sample in eight_samples())


def test_proximal_logprobs_that_the_samples_have_count_in_every_update(model_path):
    samples = [replace(one, proximal_logprobs=one.behavior_logprobs) for one in eight_samples()]
    report = train_step(a_learner(model_path, minibatches=4, importance_cap=1e9), samples, step=0)
    assert report.metrics["importance_weight_mean"] == report.metrics["importance_weight_max"] == 1.0


def test_a_large_vocabulary_goes_through_the_head_in_chunks_with_the_same_result(model_path, tmp_path, monkeypatch):
    whole = a_learner(model_path)
    expected = train_step(whole, eight_samples(), step=0)
    monkeypatch.setattr(
        "rollstream.training.learning.policy_forward.CHUNK_LOGITS", 64 * 5
    )  # five positions of the vocabulary of 64
    chunked = a_learner(model_path)
    report = train_step(chunked, eight_samples(), step=0)
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    assert report.metrics == pytest.approx(dict(expected.metrics), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(
        weights_of(chunked, tmp_path / "a"), weights_of(whole, tmp_path / "b"), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("loss", "highest"),
    [("ppo", 1.2), ("grpo", 1.2), ("dr_grpo", 1.2), ("dapo", 1.28), ("gspo", 1.0004), ("cispo", 5.0)],
)
def test_without_a_clip_range_a_step_clips_at_that_of_its_loss(model_path, loss, highest):
    sample = a_sample(1, advantage=1.0)
    logprobs, nearly = teacher_forced(model_path, sample), 0.1 * (highest - 1)
    for ratio, share in ((highest - nearly, 0.0), (highest + nearly, 1.0)):
        sampled = replace(sample, behavior_logprobs=(logprobs - np.log(ratio)).astype(np.float32))
        report = train_step(a_learner(model_path, loss=loss, old="behavior"), [sampled], step=0)
        assert report.metrics["clip_fraction_high"] == share


def test_masked_tokens_change_nothing(model_path, tmp_path):
    mask = np.array([True, True, False, False])
    sample = a_sample(1, loss_mask=mask)
    learner = a_learner(model_path)
    plain = train_step(learner, [sample, a_sample(2)], step=0)
    other = sample.behavior_logprobs.copy()
    other[~mask] = -17.0
    again = a_learner(model_path)
    masked = train_step(again, [replace(sample, behavior_logprobs=other), a_sample(2)], step=0)
    assert masked.loss == plain.loss
    assert masked.metrics["trained_tokens"] == 6
    assert torch.equal(weights_of(learner, tmp_path / "a"), weights_of(again, tmp_path / "b"))


def test_a_non_finite_gradient_skips_the_step_and_leaves_the_weights(model_path, tmp_path):
    learner = a_learner(model_path)
    before = weights_of(learner, tmp_path / "before")
    report = train_step(learner, [a_sample(1, advantage=float("inf"))], step=0)
    assert report.skipped
    assert report.num_updates == 0
    assert report.metrics["updates_skipped"] == 1
    assert torch.equal(before, weights_of(learner, tmp_path / "skipped"))
    assert not train_step(learner, eight_samples(), step=1).skipped


def test_a_restored_learner_takes_the_same_next_step_bit_for_bit(model_path, tmp_path):
    learner = a_learner(model_path, minibatches=2, warmup_steps=10)
    for step in range(3):
        train_step(learner, eight_samples(), step=step)
    learner.save_state(tmp_path)
    restored = a_learner(model_path, minibatches=2, warmup_steps=10)
    restored.load_state(tmp_path)
    expected, report = train_step(learner, eight_samples(), step=3), train_step(restored, eight_samples(), step=3)
    assert report.loss == expected.loss
    assert report.metrics == expected.metrics
    assert torch.equal(weights_of(learner, tmp_path / "a"), weights_of(restored, tmp_path / "b"))


def test_the_bounds_are_the_models_unless_the_settings_name_a_length(model_path):
    assert a_learner(model_path).bounds == ModelBounds(vocab_size=len(VOCABULARY), max_tokens=512)
    assert a_learner(model_path, max_sample_tokens=100).bounds.max_tokens == 100
    # The samples of a rollout are in one forward pass.
    assert a_learner(model_path, loss="gspo").bounds.max_rollout_tokens == 512
    assert a_learner(model_path, loss="gspo", max_rollout_tokens=2000).bounds.max_rollout_tokens == 2000


def test_a_torn_checkpoint_is_a_broken_world(model_path, tmp_path):
    learner = a_learner(model_path)
    learner.save_state(tmp_path)
    state = tmp_path / "training_state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(BrokenWorldError, match="cannot restore"):
        learner.load_state(tmp_path)


@pytest.mark.parametrize("content", [{"model": Path("code")}, {"num_updates": 3}, [1, 2]])
def test_a_checkpoint_with_something_else_in_it_is_a_broken_world(model_path, tmp_path, content):
    torch.save(content, tmp_path / "training_state.pt")
    with pytest.raises(BrokenWorldError, match=r"training_state\.pt"):
        a_learner(model_path).load_state(tmp_path)


def test_a_checkpoint_of_another_model_names_the_file_and_the_option(model_path, tmp_path):
    write_tiny_model(tmp_path / "wider", seed=0, hidden=64, layers=2, heads=2, ffn=64)
    a_learner(tmp_path / "wider").save_state(tmp_path)
    with pytest.raises(BrokenWorldError, match=r"(?s)training_state.pt.*model_path"):
        a_learner(model_path).load_state(tmp_path)


def test_a_gradient_is_applied_once(model_path, tmp_path):
    learner = a_learner(model_path)
    train_step(learner, eight_samples(), step=0)
    before = weights_of(learner, tmp_path / "before")
    with pytest.raises(ValueError, match="no gradient"):
        learner.optim_step()
    assert learner.num_updates == 1
    assert torch.equal(before, weights_of(learner, tmp_path / "after"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_weights_load_in_transformers_with_their_tokenizer(tmp_path, tied, dtype):
    source, saved = tmp_path / "source", tmp_path / "saved"
    write_tiny_model(source, seed=0, hidden=32, layers=1, heads=2, ffn=64, tie_word_embeddings=tied)
    learner = a_learner(source, dtype=dtype)
    train_step(learner, eight_samples(), step=0)
    learner.save_weights(saved)
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    assert model.dtype is getattr(torch, dtype)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert (
        transformers.AutoTokenizer.from_pretrained(saved)("52910=").input_ids
        == transformers.AutoTokenizer.from_pretrained(source)("52910=").input_ids
    )
    assert tokenizer_sha256(saved) == learner.tokenizer_sha256
    assert chat_template_sha256(saved) == learner.chat_template_sha256


def test_a_directory_without_a_model_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"config\.json.*model_path"):
        a_learner(tmp_path)


def test_at_lag_zero_the_mismatch_is_zero_when_the_engine_agrees(model_path):
    sample = a_sample(2)
    exact = replace(sample, behavior_logprobs=teacher_forced(model_path, sample))
    metrics = train_step(a_learner(model_path), [exact, a_sample(1)], step=0).metrics
    assert metrics["mismatch_kl_lag_0"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["mismatch_kl_lagged"] > 0.0


optimizer = Late("rollstream.training.learning.optimizer")

MOMENTS = ("exp_avg", "exp_avg_sq")


def test_optimizer_settings_that_changed_since_the_checkpoint_are_in_force_and_logged(model_path, tmp_path, caplog):
    """With advantage 0 the gradient is 0, so AdamW's next step follows from the checkpoint alone."""
    before = a_learner(model_path, learning_rate=0.01, beta2=0.99)
    for step in range(2):
        train_step(before, eight_samples(), step=step)
    weights = weights_of(before, tmp_path / "before")
    before.save_state(tmp_path)
    moments = [before.optimizer.state[parameter] for parameter in before._parameters]
    first, second = (torch.cat([one[name].flatten() for one in moments]) for name in MOMENTS)
    decays = torch.cat([torch.full((one.numel(),), float(is_matrix(name))) for name, one in named_parameters(before)])

    after = a_learner(model_path, learning_rate=0.02, beta2=0.95, weight_decay=0.1)
    with caplog.at_level(logging.INFO):
        after.load_state(tmp_path)
    train_step(after, [a_sample(1, advantage=0.0)], step=2)
    mean, square = 0.9 * first / (1 - 0.9**3), 0.95 * second / (1 - 0.95**3)
    expected = weights * (1 - 0.02 * 0.1 * decays) - 0.02 * mean / (square.sqrt() + 1e-8)
    torch.testing.assert_close(weights_of(after, tmp_path / "after"), expected, atol=1e-6, rtol=0)
    assert [record.getMessage() for record in caplog.records if "since the checkpoint" in record.getMessage()] == [
        "learning.learning_rate was changed since the checkpoint: 0.01 -> 0.02",
        "learning.beta2 was changed since the checkpoint: 0.99 -> 0.95",
        "learning.weight_decay was changed since the checkpoint: 0.0 -> 0.1",
    ]


def test_a_setting_that_the_checkpoint_does_not_know_yet_was_not_changed(model_path, tmp_path, caplog):
    before = a_learner(model_path)
    before.save_state(tmp_path)
    state = torch.load(tmp_path / "training_state.pt", weights_only=True)
    del state["settings"]["turn_weights"]
    torch.save(state, tmp_path / "training_state.pt")
    with caplog.at_level(logging.INFO):
        before.load_state(tmp_path)
    assert "since the checkpoint" not in caplog.text


def named_parameters(learner):
    return list(learner.model.named_parameters())


def is_matrix(name):
    """Whether it is the weight of a linear layer: neither of a norm, nor a bias, nor the embedding."""
    return name.endswith("_proj.weight")


@pytest.mark.parametrize("tied", [True, False])
def test_weight_decay_leaves_norms_biases_and_embeddings_out(tmp_path, tied):
    """With advantage 0 the gradient is 0, so the first step is the decay alone."""
    write_tiny_model(tmp_path, seed=0, hidden=32, layers=1, heads=2, ffn=64, tie_word_embeddings=tied)
    learner = a_learner(tmp_path, learning_rate=0.1, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in named_parameters(learner)}
    train_step(learner, [a_sample(1, advantage=0.0)], step=0)
    shrunk = {name for name, one in named_parameters(learner) if not torch.equal(one, before[name])}
    assert shrunk == {name for name in before if is_matrix(name) or name == "lm_head.weight"}
    assert ("lm_head.weight" in before) != tied
    assert any("norm" in name for name in before)
    for name in shrunk:
        torch.testing.assert_close(learner.model.get_parameter(name).detach(), before[name] * (1 - 0.1 * 0.5))


def test_a_bias_does_not_decay():
    layer = torch.nn.Linear(3, 2)
    decay, others = optimizer.adamw(layer, LearningSettings(weight_decay=0.5)).param_groups
    assert (decay["params"], decay["weight_decay"]) == ([layer.weight], 0.5)
    assert (others["params"], others["weight_decay"]) == ([layer.bias], 0.0)


def test_decay_rates_and_epsilon_are_those_of_the_settings(model_path, tmp_path):
    """AdamW by hand for two steps of the same samples, of which the first one gives the gradients."""
    learner = a_learner(model_path, beta1=0.5, beta2=0.75, adam_epsilon=1e-3, max_grad_norm=1e9)
    weights = weights_of(learner, tmp_path / "before")
    train_step(learner, eight_samples(), step=0)
    moments = [learner.optimizer.state[parameter] for parameter in learner._parameters]
    first, second = (torch.cat([one[name].flatten() for one in moments]) for name in MOMENTS)
    gradient = first / (1 - 0.5)
    torch.testing.assert_close(second, gradient**2 * (1 - 0.75))
    expected = weights - 1e-3 * gradient / (gradient.abs() + 1e-3)
    torch.testing.assert_close(weights_of(learner, tmp_path / "after"), expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]),
        ("linear", [0.5e-3, 1e-3, 0.775e-3, 0.55e-3, 0.325e-3, 0.1e-3, 0.1e-3]),
        ("cosine", [0.5e-3, 1e-3, 0.868198e-3, 0.55e-3, 0.231802e-3, 0.1e-3, 0.1e-3]),
    ],
)
def test_the_learning_rate_follows_its_schedule_after_the_warm_up(model_path, schedule, expected):
    end = {"schedule_steps": 6, "final_learning_rate": 1e-4} if schedule != "constant" else {}
    learner = a_learner(model_path, schedule=schedule, warmup_steps=2, **end)
    rates = [train_step(learner, eight_samples(), step=step).metrics["learning_rate"] for step in range(7)]
    assert rates == pytest.approx(expected, abs=1e-9)


def test_a_longer_warm_up_is_in_force_after_a_restart(model_path, tmp_path):
    before = a_learner(model_path, warmup_steps=2)
    for step in range(3):
        train_step(before, eight_samples(), step=step)
    before.save_state(tmp_path)
    after = a_learner(model_path, warmup_steps=8)
    after.load_state(tmp_path)
    # The fourth update of eight.
    assert train_step(after, eight_samples(), step=3).metrics["learning_rate"] == pytest.approx(0.5e-3)
