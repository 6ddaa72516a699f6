"""The single-device backend on a tiny real model."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.trainer.learning.bounds import ModelBounds
from rollstream.trainer.learning.samples import TrainingSample
from rollstream.trainer.learning.settings import LearningSettings
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
single_device = Late("rollstream.trainer.learning.backends.single_device")
hidden_states = Late("rollstream.trainer.learning.hidden_states")

MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def a_backend(model_path, **settings):
    values = {"device": "cpu", "threads": 1, "learning_rate": 1e-3, "warmup_steps": 0, **settings}
    return single_device.SingleDeviceBackend.from_model(model_path, LearningSettings(**values))


def a_sample(index, *, prompt=5, completion=4, **fields):
    generator = np.random.default_rng(index)
    values = {
        "rollout_id": f"rollout-{index}",
        "group_id": "group",
        "prompt_token_ids": generator.integers(3, 60, prompt, dtype=np.int32),
        "token_ids": generator.integers(3, 60, completion, dtype=np.int32),
        "behavior_logprobs": generator.uniform(-5, -3, completion).astype(np.float32),
        "loss_mask": np.ones(completion, dtype=np.bool_),
        "reward": 1.0,
        "advantage": float(generator.normal()),
        "temperature": 1.0,
        "max_tokens": 12,
        "policy_lag": index % 2,
    }
    return TrainingSample(**{**values, **fields})


def eight_samples():
    return [a_sample(index, prompt=3 + index % 4, completion=2 + index) for index in range(8)]


def weights_of(backend, path):
    backend.save_weights(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("normalization", ["dapo", "grpo", "dr_grpo"])
def test_the_step_does_not_depend_on_how_samples_are_split_into_micro_batches(model_path, tmp_path, normalization):
    reports, weights = [], []
    for budget in (1, 40, 10_000):  # one sample each, by budget, all at once
        backend = a_backend(model_path, tokens_per_microbatch=budget, normalization=normalization)
        reports.append(backend.train_step(eight_samples(), step=0))
        weights.append(weights_of(backend, tmp_path / f"{budget}"))
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
        backend = a_backend(model_path, share_prompts=share, **settings)
        reports.append(backend.train_step(samples, step=0))
        weights.append(weights_of(backend, tmp_path / f"{share}"))
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


def test_the_loss_of_one_minibatch_is_the_weighted_policy_gradient_at_ratio_one(model_path):
    sample = a_sample(1, advantage=2.0, temperature=0.7)
    logprobs = teacher_forced(model_path, sample)
    weights = np.minimum(np.exp(logprobs - sample.behavior_logprobs), 2.0)
    report = a_backend(model_path).train_step([sample], step=0)
    assert report.loss == pytest.approx(-2.0 * weights.mean(), rel=1e-4)
    assert report.metrics["importance_weight_max"] == pytest.approx(weights.max(), rel=1e-4)
    assert report.metrics["clip_fraction_high"] == report.metrics["clip_fraction_low"] == 0.0


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
    report = a_backend(model_path, share_prompts=share).train_step(samples, step=0)
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
    backend = a_backend(model_path, minibatches=4, learning_rate=0.05, max_grad_norm=100.0)
    report = backend.train_step(eight_samples(), step=0)
    assert report.num_updates == 4
    assert not report.skipped
    assert report.metrics["clip_fraction_low"] + report.metrics["clip_fraction_high"] > 0
    assert report.metrics["trained_tokens"] == sum(sample.num_trained_tokens for sample in eight_samples())


def test_a_large_vocabulary_goes_through_the_head_in_chunks_with_the_same_result(model_path, tmp_path, monkeypatch):
    whole = a_backend(model_path)
    expected = whole.train_step(eight_samples(), step=0)
    monkeypatch.setattr(
        "rollstream.trainer.learning.policy_forward.CHUNK_LOGITS", 64 * 5
    )  # five positions of the vocabulary of 64
    chunked = a_backend(model_path)
    report = chunked.train_step(eight_samples(), step=0)
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    assert report.metrics == pytest.approx(dict(expected.metrics), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(
        weights_of(chunked, tmp_path / "a"), weights_of(whole, tmp_path / "b"), atol=2e-5, rtol=0
    )


def test_old_behavior_divides_by_the_behavior_logprobs_without_a_weight(model_path):
    sample = a_sample(1, advantage=-1.0)
    ratio = np.exp(teacher_forced(model_path, sample) - sample.behavior_logprobs)
    report = a_backend(model_path, old="behavior").train_step([sample], step=0)
    assert report.loss == pytest.approx(np.maximum(ratio, 0.8).mean(), rel=1e-4)
    assert report.metrics["importance_weight_mean"] == 1.0


def test_masked_tokens_change_nothing(model_path, tmp_path):
    mask = np.array([True, True, False, False])
    sample = a_sample(1, loss_mask=mask)
    backend = a_backend(model_path)
    plain = backend.train_step([sample, a_sample(2)], step=0)
    other = sample.behavior_logprobs.copy()
    other[~mask] = -17.0
    again = a_backend(model_path)
    masked = again.train_step([replace(sample, behavior_logprobs=other), a_sample(2)], step=0)
    assert masked.loss == plain.loss
    assert masked.metrics["trained_tokens"] == 6
    assert torch.equal(weights_of(backend, tmp_path / "a"), weights_of(again, tmp_path / "b"))


@pytest.mark.parametrize(
    ("loss", "share"),
    [("grpo", 3 / 4), ("gspo", 3 / 4), ("dr_grpo", 3 / 4), ("dapo", 1.0), ("cispo", 1.0), ("ppo", 1.0)],
)
def test_a_truncated_sample_counts_in_the_means_over_samples_and_in_no_mean_over_tokens(model_path, loss, share):
    """As in TRL: with one of four truncated, a mean over samples has 3/4 of the gradient that it has without it."""
    trained = [a_sample(index) for index in (1, 2, 3)]
    truncated = a_sample(4, loss_mask=np.zeros(4, dtype=np.bool_))
    without = a_backend(model_path, loss=loss).train_step(trained, step=0)
    with_it = a_backend(model_path, loss=loss).train_step([*trained, truncated], step=0)
    assert with_it.loss == pytest.approx(share * without.loss, rel=1e-6)
    assert with_it.grad_norm == pytest.approx(share * without.grad_norm, rel=1e-5)


def test_a_step_in_which_nothing_trains_is_refused(model_path):
    with pytest.raises(ValueError, match="none of 1 samples"):
        a_backend(model_path).train_step([a_sample(1, loss_mask=np.zeros(4, dtype=np.bool_))], step=0)


def test_a_non_finite_gradient_skips_the_step_and_leaves_the_weights(model_path, tmp_path):
    backend = a_backend(model_path)
    before = weights_of(backend, tmp_path / "before")
    report = backend.train_step([a_sample(1, advantage=float("inf"))], step=0)
    assert report.skipped
    assert report.num_updates == 0
    assert report.metrics["updates_skipped"] == 1
    assert torch.equal(before, weights_of(backend, tmp_path / "skipped"))
    assert not backend.train_step(eight_samples(), step=1).skipped


def test_a_restored_backend_takes_the_same_next_step_bit_for_bit(model_path, tmp_path):
    backend = a_backend(model_path, minibatches=2, warmup_steps=10)
    for step in range(3):
        backend.train_step(eight_samples(), step=step)
    backend.save_state(tmp_path)
    restored = a_backend(model_path, minibatches=2, warmup_steps=10)
    restored.load_state(tmp_path)
    expected, report = backend.train_step(eight_samples(), step=3), restored.train_step(eight_samples(), step=3)
    assert report.loss == expected.loss
    assert report.metrics == expected.metrics
    assert torch.equal(weights_of(backend, tmp_path / "a"), weights_of(restored, tmp_path / "b"))


def test_optimizer_settings_that_changed_since_the_checkpoint_are_in_force_and_logged(model_path, tmp_path, caplog):
    """With advantage 0 the gradient is 0, so AdamW's next step follows from the checkpoint alone."""
    before = a_backend(model_path, learning_rate=0.01, beta2=0.99)
    for step in range(2):
        before.train_step(eight_samples(), step=step)
    weights = weights_of(before, tmp_path / "before")
    before.save_state(tmp_path)
    moments = torch.load(tmp_path / "training_state.pt")["optimizer"]["state"]
    first, second = (torch.cat([moments[index][name].flatten() for index in sorted(moments)]) for name in MOMENTS)

    after = a_backend(model_path, learning_rate=0.02, beta2=0.95, weight_decay=0.1)
    with caplog.at_level(logging.INFO):
        after.load_state(tmp_path)
    after.train_step([a_sample(1, advantage=0.0)], step=2)
    mean, square = 0.9 * first / (1 - 0.9**3), 0.95 * second / (1 - 0.95**3)
    expected = weights * (1 - 0.02 * 0.1) - 0.02 * mean / (square.sqrt() + 1e-8)
    torch.testing.assert_close(weights_of(after, tmp_path / "after"), expected, atol=1e-6, rtol=0)
    assert [record.getMessage() for record in caplog.records if "since the checkpoint" in record.getMessage()] == [
        "learning.learning_rate was changed since the checkpoint: 0.01 -> 0.02",
        "learning.beta2 was changed since the checkpoint: 0.99 -> 0.95",
        "learning.weight_decay was changed since the checkpoint: 0.0 -> 0.1",
    ]


def test_a_longer_warm_up_is_in_force_after_a_restart(model_path, tmp_path):
    before = a_backend(model_path, warmup_steps=2)
    for step in range(3):
        before.train_step(eight_samples(), step=step)
    before.save_state(tmp_path)
    after = a_backend(model_path, warmup_steps=8)
    after.load_state(tmp_path)
    # The fourth update of eight.
    assert after.train_step(eight_samples(), step=3).metrics["learning_rate"] == pytest.approx(0.5e-3)


def test_the_bounds_are_the_models_unless_the_settings_name_a_length(model_path):
    assert a_backend(model_path).bounds == ModelBounds(vocab_size=len(VOCABULARY), max_tokens=512)
    assert a_backend(model_path, max_sample_tokens=100).bounds.max_tokens == 100


def test_a_torn_checkpoint_is_a_broken_world(model_path, tmp_path):
    backend = a_backend(model_path)
    backend.save_state(tmp_path)
    state = tmp_path / "training_state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(BrokenWorldError, match="cannot restore"):
        backend.load_state(tmp_path)


def test_the_learning_rate_rises_over_the_warm_up_and_stays(model_path):
    backend = a_backend(model_path, warmup_steps=4)
    rates = [backend.train_step(eight_samples(), step=step).metrics["learning_rate"] for step in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_weights_load_in_transformers_with_their_tokenizer(tmp_path, tied, dtype):
    source, saved = tmp_path / "source", tmp_path / "saved"
    write_tiny_model(source, seed=0, hidden=32, layers=1, heads=2, ffn=64, tie_word_embeddings=tied)
    backend = a_backend(source, dtype=dtype)
    backend.train_step(eight_samples(), step=0)
    backend.save_weights(saved)
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    assert model.dtype is getattr(torch, dtype)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert (
        transformers.AutoTokenizer.from_pretrained(saved)("52910=").input_ids
        == transformers.AutoTokenizer.from_pretrained(source)("52910=").input_ids
    )
    assert tokenizer_sha256(saved) == backend.tokenizer_sha256
    assert chat_template_sha256(saved) == backend.chat_template_sha256


def test_a_directory_without_a_model_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        a_backend(tmp_path)


def test_at_lag_zero_the_mismatch_is_zero_when_the_engine_agrees(model_path):
    sample = a_sample(2)
    exact = replace(sample, behavior_logprobs=teacher_forced(model_path, sample))
    metrics = a_backend(model_path).train_step([exact, a_sample(1)], step=0).metrics
    assert metrics["mismatch_kl_lag_0"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["mismatch_kl_lagged"] > 0.0
