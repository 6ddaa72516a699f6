"""The single-device backend: what it takes as a batch and a loss, what its futures give, and its checkpoints."""

import asyncio
import contextlib
import math
import threading
from functools import partial

import pytest

from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.training.learning.objective_settings import ObjectiveSettings
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
toys = Late("tests.harness.toy_models")
pytorch = Late("rollstream.training.backends.pytorch")
factory = Late("rollstream.training.backends.pytorch_factory")
rl_losses = Late("rollstream.training.rl_losses")
batches = Late("rollstream.training.backends.batch")
bounds = Late("rollstream.training.learning.bounds")


def a_toy_backend(tmp_path, loss_fn=None, **fields):
    model = fields.pop("model", None) or toys.ToyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = toys.token_mean if loss_fn is None else loss_fn
    return contextlib.closing(pytorch.PyTorchTrainingBackend(model, optimizer, loss, tmp_path, **fields))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def a_tiny_backend(model_path, tmp_path, loss_fn="nll", **settings):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    values = LearningSettings(**{"learning_rate": 1e-3, "warmup_steps": 0, **settings})
    backend = pytorch.PyTorchTrainingBackend(model, None, loss_fn, tmp_path, settings=values)
    return contextlib.closing(backend)


def done(future):
    return asyncio.run(asyncio.wait_for(future.result(), 60))


def test_a_forward_future_is_there_before_the_pass_has_ended_and_its_metrics_come_in_order(tmp_path):
    may_go_on = threading.Event()

    def slow_loss(logits, labels, loss_mask):
        assert may_go_on.wait(20)
        return toys.token_mean(logits, labels, loss_mask)

    with a_toy_backend(tmp_path, slow_loss) as backend:
        forward, step = backend.forward_backward(toys.two_rows()), backend.optim_step()
        assert not forward.done()
        may_go_on.set()
        forward_metrics, step_metrics = done(forward), done(step)
    assert {"loss", "grad_norm"} <= forward_metrics.keys()
    assert (step_metrics["lr"], step_metrics["step"]) == (0.5, 1)
    assert forward_metrics["grad_norm"] == pytest.approx(step_metrics["grad_norm"])


def test_the_loss_of_two_rows_is_the_value_by_hand_and_prompts_get_no_gradient(tmp_path):
    seen = []

    def loss_of_uniform_logits(logits, labels, loss_mask):
        flat = (logits * 0).detach().requires_grad_()
        flat.data[0, 1, 3] = math.log(7.0)  # the answer's first token with 7 / (7 + 7) = 1/2, the others with 1/8
        seen.append(flat)
        return toys.token_mean(flat, labels, loss_mask)

    with a_toy_backend(tmp_path, loss_of_uniform_logits) as backend:
        metrics = done(backend.forward_backward(toys.two_rows()))
    assert metrics["loss"] == pytest.approx((math.log(2) + 2 * math.log(8)) / 3, rel=1e-6)
    trained = seen[0].grad.abs().sum(dim=-1) > 0
    assert trained.tolist() == [[False, True, True], [True, False, False]]


def test_nll_by_name_is_the_same_loss_and_gradient_as_a_function_over_logits(model_path, tmp_path):
    found = []
    for loss in ("nll", toys.token_mean):
        with a_tiny_backend(model_path, tmp_path, loss) as backend:
            found.append(done(backend.forward_backward(toys.two_rows())))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_policy_loss_by_name_is_the_same_gradient_as_its_formula_over_logits(model_path, tmp_path):
    batch = {
        **toys.two_rows(),
        "advantages": [1.0, -0.5],
        "rollout_log_probs": [[0, 0, -4.0, -4.3], [0, -4.1]],
    }

    def by_hand(logits, labels, loss_mask, advantages, rollout_log_probs):
        logprobs = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
        weights = (logprobs - rollout_log_probs).exp().clamp(max=2.0).detach()
        ratio = (logprobs - logprobs.detach()).exp()
        return -(weights * ratio * advantages[:, None] * loss_mask).sum() / loss_mask.sum()

    found = []
    for loss in (ObjectiveSettings(loss="dapo"), by_hand):
        with a_tiny_backend(model_path, tmp_path, loss) as backend:
            found.append(done(backend.forward_backward(batch)))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_the_ratio_of_a_loss_by_name_is_to_the_old_log_probs_of_the_batch(model_path, tmp_path):
    old = [[0, 0, -4.0, -4.3], [0, -4.1]]
    batch = {**toys.two_rows(), "advantages": [1.0, -0.5], "old_log_probs": old}
    found = []
    ours = ObjectiveSettings(loss="grpo", clip_high=0.3, clip_low=0.3, correction="none")
    for loss in (ours, partial(rl_losses.ppo_loss, clip_range=0.3)):
        with a_tiny_backend(model_path, tmp_path, loss) as backend:
            found.append(done(backend.forward_backward(batch)))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0]["loss"] != pytest.approx(-0.25)  # what it is at ratio 1


def test_a_kl_coefficient_measures_from_the_model_that_the_backend_was_given(model_path, tmp_path):
    batch = {**toys.two_rows(), "advantages": [1.0, -0.5]}
    loss = ObjectiveSettings(loss="reinforce", correction="none", kl_coefficient=0.5, kl_estimator="k2")
    plain = ObjectiveSettings(loss="reinforce", correction="none")
    losses = []
    for objective in (loss, plain):
        with a_tiny_backend(model_path, tmp_path, objective) as backend:
            first = done(backend.forward_backward(batch))["loss"]
            done(backend.optim_step())
            losses.append((first, done(backend.forward_backward(batch))["loss"]))
    (first, second), (plain_first, plain_second) = losses
    # The same at first, when the policy still is the reference; so is its gradient.
    assert first == pytest.approx(plain_first, rel=1e-6)
    assert second > plain_second + 1e-6
    in_reward = ObjectiveSettings(kl_coefficient=0.5, kl_in="reward")
    with pytest.raises(ConfigurationError, match=r"kl_in 'reward'.*advantages"):
        a_tiny_backend(model_path, tmp_path, in_reward)


def test_gradients_of_several_calls_add_up_until_the_step_applies_them_once(tmp_path):
    rows = {name: [[row] for row in value] for name, value in toys.two_rows().items()}
    first, second = ({name: value[index] for name, value in rows.items()} for index in (0, 1))
    norms = []
    for order in ([first, second], [second, first]):
        with a_toy_backend(tmp_path) as backend:
            norms.append([done(backend.forward_backward(batch))["grad_norm"] for batch in order])
            norms[-1].append(done(backend.optim_step())["grad_norm"])
            with pytest.raises(ValueError, match="forward_backward"):
                done(backend.optim_step())
    assert norms[0][0] != pytest.approx(norms[0][1])
    assert norms[0][1:] == pytest.approx([norms[1][1], norms[1][1]])


def test_after_a_failed_pass_its_gradient_is_dropped_and_no_step_is_made_of_it(tmp_path):
    with a_toy_backend(tmp_path) as backend:
        before = backend.learner.model.head.weight.clone()
        done(backend.forward_backward(toys.two_rows()))
        bad = {**toys.two_rows(), "loss_mask": [[0, 0, 1, 7], [0, 1]]}
        forward, step = backend.forward_backward(bad), backend.optim_step()
        for future in (forward, step):
            with pytest.raises(BadMessageError, match="loss_mask"):
                done(future)
        assert torch.equal(backend.learner.model.head.weight, before)
        with pytest.raises(ValueError, match="no gradient"):
            done(backend.optim_step())
        done(backend.forward_backward(toys.two_rows()))
        assert done(backend.optim_step())["step"] == 1


def test_an_update_that_is_not_finite_is_skipped_and_told(tmp_path):
    def infinite(logits):
        return logits.sum() * math.inf

    with a_toy_backend(tmp_path, infinite) as backend:
        before = backend.learner.model.head.weight.clone()
        done(backend.forward_backward(toys.two_rows()))
        metrics = done(backend.optim_step())
        assert (metrics["skipped"], metrics["step"]) == (1.0, 0)
        assert torch.equal(backend.learner.model.head.weight, before)


def test_rows_of_any_kind_are_padded_and_shifted_alike():
    as_lists = batches.padded({**toys.two_rows(), "advantages": [1, 2]}, bounds.ANY_MODEL)
    as_tensors = batches.padded(
        {name: [torch.tensor(row) for row in rows] for name, rows in toys.two_rows().items()}
        | {"advantages": torch.tensor([1.0, 2.0])},
        bounds.ANY_MODEL,
    )
    assert as_lists["tokens"].tolist() == [[1, 2, 3], [5, 0, 0]]
    assert as_lists["labels"].tolist() == [[2, 3, 4], [6, 0, 0]]
    assert as_lists["loss_mask"].tolist() == [[0, 1, 1], [1, 0, 0]]
    again = batches.padded(as_lists, bounds.ANY_MODEL)
    for name, value in as_lists.items():
        assert torch.equal(value, as_tensors[name])
        assert torch.equal(value, again[name])


def test_a_padded_row_becomes_the_sample_that_it_was():
    batch = {
        **toys.two_rows(),
        "advantages": [1.0, -2.0],
        "rollout_log_probs": [[0, 0, -1, -2], [0, -3]],
        "temperatures": [0.7, 1.0],
        "max_tokens": [9, 5],
    }
    first, second = batches.training_samples(batches.padded(batch, bounds.ANY_MODEL))
    assert first.prompt_token_ids.tolist() == [1, 2]
    assert first.token_ids.tolist() == [3, 4]
    assert first.behavior_logprobs.tolist() == [-1, -2]
    assert (first.advantage, first.max_tokens) == (1.0, 9)
    assert first.temperature == pytest.approx(0.7)
    assert (second.prompt_token_ids.tolist(), second.token_ids.tolist()) == ([5], [6])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": [[1, 2, 3, 64], [5, 6]]}, ["tokens", "64", "row 0"]),
        ({"tokens": [[1, 2, 3, -1], [5, 6]]}, ["tokens", "-1", "row 0"]),
        ({"tokens": [[1.5, 2, 3, 4], [5, 6]]}, ["tokens", "row 0", "whole"]),
        ({"tokens": [[1, 2, 3, 4], [5]]}, ["row 1"]),
        ({"tokens": [], "loss_mask": []}, ["tokens", "loss_mask"]),
        ({"tokens": "text"}, ["tokens"]),
        ({"loss_mask": [[0, 0, 1, 1]]}, ["loss_mask", "tokens"]),
        ({"loss_mask": [[0, 0, 1], [0, 1]]}, ["loss_mask", "row 0", "3", "4"]),
        ({"loss_mask": [[0, 0, 1, 0.5], [0, 1]]}, ["loss_mask", "row 0", "0.5"]),
        ({"loss_mask": [[0, 0, 0, 0], [0, 0]]}, ["loss_mask"]),
        ({"advantages": [1.0]}, ["advantages", "2"]),
        ({"advantages": [1.0, math.nan]}, ["advantages", "row 1", "nan"]),
        ({"advantages": [None, 1.0]}, ["advantages"]),
        ({"rollout_log_probs": [[0, 0, -1, -math.inf], [0, -1]]}, ["rollout_log_probs", "row 0", "inf"]),
        ({"temperatures": [1.0, 0.0]}, ["temperatures", "row 1"]),
        ({"tokens": [[1] * 600, [5, 6]], "loss_mask": [[1] * 600, [0, 1]]}, ["600", "512", "row 0"]),
    ],
    ids=str,
)
def test_a_batch_that_a_step_cannot_compute_with_is_refused_with_its_place(change, named):
    model = bounds.ModelBounds(vocab_size=len(VOCABULARY), max_tokens=512)
    with pytest.raises(BadMessageError) as refused:
        batches.padded({**toys.two_rows(), **change}, model)
    assert [name for name in named if name not in str(refused.value)] == []


def test_a_loss_says_what_it_needs_of_a_batch(model_path, tmp_path):
    def needs_old(logits, old_log_probs):
        return logits.sum()

    with a_toy_backend(tmp_path, needs_old) as backend, pytest.raises(BadMessageError, match="old_log_probs"):
        done(backend.forward_backward(toys.two_rows()))
    named = pytest.raises(BadMessageError, match=r"advantages.*rollout_log_probs")
    with a_tiny_backend(model_path, tmp_path, "grpo") as backend, named:
        done(backend.forward_backward(toys.two_rows()))
    with pytest.raises(ConfigurationError, match="logits"):
        pytorch.PyTorchTrainingBackend(toys.ToyModel(), None, lambda labels: labels.sum(), tmp_path)
    with a_toy_backend(tmp_path, lambda logits: logits) as backend, pytest.raises(BadMessageError, match="shape"):
        done(backend.forward_backward(toys.two_rows()))


def test_what_a_batch_holds_besides_reaches_a_loss_that_takes_it(tmp_path):
    seen = {}

    def own(logits, bonus, **others):
        seen.update(others, bonus=bonus)
        return logits.sum() * 0

    with a_toy_backend(tmp_path, own) as backend:
        done(backend.forward_backward({**toys.two_rows(), "bonus": "kept"}))
    assert seen["bonus"] == "kept"
    assert {"labels", "loss_mask", "tokens"} <= seen.keys()


def test_the_factory_loads_a_model_by_its_directory_with_its_loss_and_rate(model_path, tmp_path):
    settings = LearningSettings(warmup_steps=0, threads=1)
    backend = factory.create_pytorch_backend(model_path, tmp_path, "cpu", 0.25, settings=settings)
    with contextlib.closing(backend):
        done(backend.forward_backward(toys.two_rows()))
        assert done(backend.optim_step())["lr"] == 0.25
        path = asyncio.run(backend.save_checkpoint(1, {}))
    again = factory.create_pytorch_backend(path, tmp_path, "cpu", 0.25, settings=settings)
    with contextlib.closing(again):
        assert again.learner.tokenizer_sha256 == backend.learner.tokenizer_sha256
        assert asyncio.run(again.load_checkpoint(path))["step"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model_name": "./nowhere"}, ["./nowhere", "directory"]),
        ({"device_type": "tpu"}, ["tpu", "auto, cpu, cuda"]),
        ({"model_name": "empty"}, ["config.json"]),
    ],
)
def test_the_factory_says_what_to_do_about_a_model_or_device_that_is_not_there(
    model_path, tmp_path, monkeypatch, arguments, named
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    values = {"model_name": model_path, "checkpoint_dir": tmp_path, "device_type": "cpu", **arguments}
    with pytest.raises(ConfigurationError) as refused:
        factory.create_pytorch_backend(**values)
    assert [name for name in named if name not in str(refused.value)] == []


def test_a_named_loss_is_refused_for_a_model_that_it_cannot_use(tmp_path):
    with pytest.raises(ConfigurationError, match="ToyModel"):
        pytorch.PyTorchTrainingBackend(toys.ToyModel(), None, "nll", tmp_path)
