"""The script that shows GRPO on one page: it runs, it is short, and its gradient is that of the library."""

import runpy
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late
from tests.harness.learners import a_sample

torch = Late("torch")
grpo = Late("trainer.examples.grpo")
learning = Late("rollstream.training.learning.learner")
train_step = Late("rollstream.training.learning.train_step")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "trainer" / "examples" / "grpo.py"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def a_learner(model_path, **settings):
    """Whose optimizer moves each parameter by its gradient."""
    values = {"dtype": "float64", "device": "cpu", "threads": 1, "max_grad_norm": 1e9, **settings}
    learner = learning.Learner.from_model(model_path, LearningSettings(**values))
    sgd = torch.optim.SGD(learner.model.parameters(), lr=1.0)
    return learning.Learner(learner.model, learner.settings, device=learner.device, optimizer=sgd)


def parameters_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def padded(samples):
    pairs = [(one.prompt_token_ids.tolist(), one.token_ids.tolist()) for one in samples]
    return grpo.pad(*zip(*pairs, strict=True))


def a_batch(model_path, advantages):
    """Samples of several lengths, with the logprobs that the model gives their tokens."""
    drawn = [
        a_sample(index, prompt=3 + index, completion=2 + index % 4, advantage=advantage)
        for index, advantage in enumerate(advantages)
    ]
    with torch.no_grad():
        rows = grpo.logprobs_of(a_learner(model_path).model, padded(drawn)[0]).numpy()
    first = [len(one.prompt_token_ids) - 1 for one in drawn]
    return [
        replace(one, behavior_logprobs=row[start : start + len(one.token_ids)])
        for one, row, start in zip(drawn, rows, first, strict=True)
    ]


def gradient_of_a_step(model_path, samples, **settings):
    learner = a_learner(model_path, **settings)
    before = parameters_of(learner.model)
    train_step.train_step(learner, samples, step=0)
    return {name: before[name] - after for name, after in parameters_of(learner.model).items()}


def gradient_of_the_script(model_path, samples):
    model = a_learner(model_path).model
    tokens, mask = padded(samples)
    logprobs = grpo.logprobs_of(model, tokens)
    advantages = torch.tensor([one.advantage for one in samples], dtype=torch.float64)
    torch.autograd.backward(grpo.grpo_loss(logprobs, logprobs.detach(), mask, advantages))
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal(found, wanted):
    for name, gradient in wanted.items():
        assert float(gradient.abs().max()) > 0, name
        assert float((found[name] - gradient).abs().max()) <= 1e-6 * float(gradient.abs().max()), name


def test_fine_tuning_the_trainers_step_and_the_script_give_the_same_gradient(model_path):
    """What is imitated is what has the advantage 1."""
    samples = a_batch(model_path, [1.0] * 8)
    script = gradient_of_the_script(model_path, samples)
    assert_equal(gradient_of_a_step(model_path, samples, loss="dapo"), script)
    assert_equal(gradient_of_a_step(model_path, samples, loss="nll"), script)


def test_the_trainers_step_and_the_script_give_the_same_gradient_for_any_advantages(model_path):
    samples = a_batch(model_path, np.linspace(-1.0, 1.5, 8).tolist())
    assert_equal(gradient_of_a_step(model_path, samples, loss="dapo"), gradient_of_the_script(model_path, samples))


def test_the_script_clips_as_the_loss_of_its_paper():
    """min(ratio x A, clip(ratio, 0.8, 1.28) x A) of four ratios by hand."""
    ratios = torch.tensor([[1.5, 0.5], [1.5, 0.5]])
    mask = torch.tensor([[0.0, 1.0, 1.0]] * 2)
    loss = grpo.grpo_loss(ratios.log(), torch.zeros(2, 2), mask, torch.tensor([1.0, -1.0]))
    assert loss.item() == pytest.approx(-(1.28 + 0.5 - 1.5 - 0.8) / 4)


def test_the_script_runs_and_prints_rewards(monkeypatch, capsys):
    options = ["--steps", "10", "--warm-up-steps", "2", "--prompts", "2", "--group-size", "2"]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.startswith("step 10: mean reward ")


def test_the_reward_rises_where_the_script_learns():
    """A single task, of whose answers one in eight is right at first: three in four with each of three seeds."""
    torch.manual_seed(0)
    model, tasks = grpo.new_model(hidden=32), [_task("210=", "012")] * 4
    grpo.warm_up(model, iter(tasks * 120), steps=60, batch=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    rewards = [grpo.grpo_step(model, optimizer, tasks, group_size=16) for _ in range(30)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3


def _task(asked, answer):
    from rollstream.environments.protocol import Task
    from rollstream.schemas.prompt import Message

    message = Message(role="user", content=asked)
    return Task(task_id=asked, messages=(message,), reference_answer=answer, demonstration=answer)


def test_the_script_is_one_page_of_torch_and_transformers_and_not_in_the_wheel():
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 150
    ours = {line.split()[1] for line in lines if line.startswith("from rollstream")}
    assert ours == {"rollstream.environments.protocol", "rollstream.environments.sort_digits"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert all(Path(package).name == "rollstream" for package in packages)
