"""AdamW as the backend uses it: what decays, which settings are in force, and the learning rate over time."""

import logging

import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.trainer.learning.settings import LearningSettings
from tests.harness.backends import a_backend, a_sample, eight_samples, weights_of
from tests.harness.late import Late

torch = Late("torch")
optimizer = Late("rollstream.trainer.learning.optimizer")

MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def test_optimizer_settings_that_changed_since_the_checkpoint_are_in_force_and_logged(model_path, tmp_path, caplog):
    """With advantage 0 the gradient is 0, so AdamW's next step follows from the checkpoint alone."""
    before = a_backend(model_path, learning_rate=0.01, beta2=0.99)
    for step in range(2):
        before.train_step(eight_samples(), step=step)
    weights = weights_of(before, tmp_path / "before")
    before.save_state(tmp_path)
    moments = [before._optimizer.state[parameter] for parameter in before._parameters]
    first, second = (torch.cat([one[name].flatten() for one in moments]) for name in MOMENTS)
    decays = torch.cat([torch.full((one.numel(),), float(is_matrix(name))) for name, one in named_parameters(before)])

    after = a_backend(model_path, learning_rate=0.02, beta2=0.95, weight_decay=0.1)
    with caplog.at_level(logging.INFO):
        after.load_state(tmp_path)
    after.train_step([a_sample(1, advantage=0.0)], step=2)
    mean, square = 0.9 * first / (1 - 0.9**3), 0.95 * second / (1 - 0.95**3)
    expected = weights * (1 - 0.02 * 0.1 * decays) - 0.02 * mean / (square.sqrt() + 1e-8)
    torch.testing.assert_close(weights_of(after, tmp_path / "after"), expected, atol=1e-6, rtol=0)
    assert [record.getMessage() for record in caplog.records if "since the checkpoint" in record.getMessage()] == [
        "learning.learning_rate was changed since the checkpoint: 0.01 -> 0.02",
        "learning.beta2 was changed since the checkpoint: 0.99 -> 0.95",
        "learning.weight_decay was changed since the checkpoint: 0.0 -> 0.1",
    ]


def named_parameters(backend):
    return list(backend._model.named_parameters())


def is_matrix(name):
    """Whether it is the weight of a linear layer: neither of a norm, nor a bias, nor the embedding."""
    return name.endswith("_proj.weight")


@pytest.mark.parametrize("tied", [True, False])
def test_weight_decay_leaves_norms_biases_and_embeddings_out(tmp_path, tied):
    """With advantage 0 the gradient is 0, so the first step is the decay alone."""
    write_tiny_model(tmp_path, seed=0, hidden=32, layers=1, heads=2, ffn=64, tie_word_embeddings=tied)
    backend = a_backend(tmp_path, learning_rate=0.1, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in named_parameters(backend)}
    backend.train_step([a_sample(1, advantage=0.0)], step=0)
    shrunk = {name for name, one in named_parameters(backend) if not torch.equal(one, before[name])}
    assert shrunk == {name for name in before if is_matrix(name) or name == "lm_head.weight"}
    assert ("lm_head.weight" in before) != tied
    assert any("norm" in name for name in before)
    for name in shrunk:
        torch.testing.assert_close(backend._model.get_parameter(name).detach(), before[name] * (1 - 0.1 * 0.5))


def test_a_bias_does_not_decay():
    layer = torch.nn.Linear(3, 2)
    decay, others = optimizer.adamw(layer, LearningSettings(weight_decay=0.5)).param_groups
    assert (decay["params"], decay["weight_decay"]) == ([layer.weight], 0.5)
    assert (others["params"], others["weight_decay"]) == ([layer.bias], 0.0)


def test_decay_rates_and_epsilon_are_those_of_the_settings(model_path, tmp_path):
    """AdamW by hand for two steps of the same samples, of which the first one gives the gradients."""
    backend = a_backend(model_path, beta1=0.5, beta2=0.75, adam_epsilon=1e-3, max_grad_norm=1e9)
    weights = weights_of(backend, tmp_path / "before")
    backend.train_step(eight_samples(), step=0)
    moments = [backend._optimizer.state[parameter] for parameter in backend._parameters]
    first, second = (torch.cat([one[name].flatten() for one in moments]) for name in MOMENTS)
    gradient = first / (1 - 0.5)
    torch.testing.assert_close(second, gradient**2 * (1 - 0.75))
    expected = weights - 1e-3 * gradient / (gradient.abs() + 1e-3)
    torch.testing.assert_close(weights_of(backend, tmp_path / "after"), expected, atol=1e-7, rtol=0)


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
    backend = a_backend(model_path, schedule=schedule, warmup_steps=2, **end)
    rates = [backend.train_step(eight_samples(), step=step).metrics["learning_rate"] for step in range(7)]
    assert rates == pytest.approx(expected, abs=1e-9)


def test_a_longer_warm_up_is_in_force_after_a_restart(model_path, tmp_path):
    before = a_backend(model_path, warmup_steps=2)
    for step in range(3):
        before.train_step(eight_samples(), step=step)
    before.save_state(tmp_path)
    after = a_backend(model_path, warmup_steps=8)
    after.load_state(tmp_path)
    # The fourth update of eight.
    assert after.train_step(eight_samples(), step=3).metrics["learning_rate"] == pytest.approx(0.5e-3)
