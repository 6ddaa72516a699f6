"""The warm-up by SFT: masked loss on two small rows, masked gradients, and a short run on a real environment."""

import copy
import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from rollstream.cli.sft import command
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.protocol import Split, Task
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.environments.sort_digits import SortDigits
from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling
from rollstream.training.learning import samples
from rollstream.training.sft.settings import SftSettings, imitating
from tests.harness.late import Late
from tests.harness.learners import a_learner, train_step

torch = Late("torch")
transformers = Late("transformers")
sft = Late("rollstream.training.sft.sft")
validation = Late("rollstream.training.sft.validation")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


def test_the_loss_and_its_gradient_are_those_of_the_mean_over_the_answers_tokens_of_all_rows(model_path):
    """By hand: rows padded on the right, and labels that leave prompts and padding out."""
    rows = [([5, 6, 7], [8, 1]), ([5], [9, 1, 4])]
    learner = a_learner(model_path, loss="nll", dtype="float64", max_grad_norm=1e9)
    model = copy.deepcopy(learner.model)
    report = train_step(learner, [samples.imitated(*row) for row in rows], step=0)
    input_ids = torch.tensor([[5, 6, 7, 8, 1], [5, 9, 1, 4, 0]])
    labels = torch.tensor([[-100, -100, -100, 8, 1], [-100, 9, 1, 4, -100]])
    logits = model(input_ids=input_ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss.backward()
    assert report.loss == pytest.approx(loss.item(), abs=1e-12)
    for found, expected in zip(learner.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, atol=1e-10, rtol=0)


@pytest.mark.parametrize("prompt", [[], [8]])
def test_the_first_token_of_all_is_predicted_by_nothing_so_it_is_not_imitated(model_path, prompt):
    sample = samples.imitated(prompt, [8, 9, 1][len(prompt) :])
    learner = a_learner(model_path, loss="nll", dtype="float64")
    logits = learner.model(input_ids=torch.tensor([[8, 9]])).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([9, 1])).item()
    assert train_step(learner, [sample], step=0).loss == pytest.approx(expected, abs=1e-12)


def test_rewards_and_logprobs_of_a_behavior_policy_change_nothing(model_path):
    sample = samples.imitated([5, 6, 7], [8, 1])
    other = replace(sample, advantage=-3.0, behavior_logprobs=np.full(2, -9.0, dtype=np.float32), policy_lag=4)
    reports = [train_step(a_learner(model_path, loss="nll"), [one], step=0) for one in (sample, other)]
    assert reports[0].loss == reports[1].loss
    assert reports[0].grad_norm == reports[1].grad_norm


def test_an_environment_of_a_users_own_is_found_in_the_runs_file(tmp_path):
    (tmp_path / "rollstream.toml").write_text(
        'run = "demo"\n[environments.own]\npath = "tests.harness.unruly_environment.Unruly"\n'
    )
    words = ["--tiny-model", "--output", str(tmp_path / "warm"), "--environment", "own"]
    refused = CliRunner().invoke(command, words)
    assert "'own' is not one of the environments of this run" in str(refused.exception)
    loaded = CliRunner().invoke(command, [*words, "--config", str(tmp_path / "rollstream.toml")])
    assert "environment 'unruly' has no demonstrations" in str(loaded.exception)


def a_warm_up(tmp_path, seed=0, **settings):
    source = tmp_path / "source"
    write_tiny_model(source, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    values = {
        "model_path": source,
        "output": tmp_path / "warm",
        "environment": "sort_digits",
        "learning": imitating(device="cpu", threads=1, seed=seed),
        "num_validation_prompts": 16,
        **settings,
    }
    return SftSettings(**values)


def test_a_warm_up_lowers_the_loss_and_writes_a_model_that_loads(tmp_path):
    first = sft.run_sft(a_warm_up(tmp_path, max_steps=1))
    report = sft.run_sft(a_warm_up(tmp_path, max_steps=40))
    assert report.num_steps == 40
    assert report.accuracy is None
    assert report.loss < first.loss - 1.0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "warm").dtype is torch.float32
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "warm").eos_token_id is not None


def test_a_warm_up_stops_at_the_first_check_that_reaches_its_accuracy(tmp_path):
    report = sft.run_sft(a_warm_up(tmp_path, until_accuracy=0.0, check_every=3, max_steps=40))
    assert report.num_steps == 3
    assert report.accuracy is not None


def test_the_same_seed_gives_the_same_warm_up(tmp_path):
    reports = [
        sft.run_sft(a_warm_up(tmp_path, until_accuracy=1.0, check_every=4, max_steps=8, seed=3)) for _ in range(2)
    ]
    assert reports[0] == reports[1]


class WithoutValidation(SortDigits):
    """Has tasks to train on only."""

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(()) if split == "validate" else super().tasks(split, seed)


def test_an_accuracy_is_refused_where_there_is_nothing_to_measure_it_with(tmp_path):
    own = {"path": f"{__name__}.{WithoutValidation.__name__}"}
    common = {"environment": "own", "environments": {"own": own}}
    with pytest.raises(ConfigurationError, match="no prompt in the split validate"):
        sft.run_sft(a_warm_up(tmp_path, **common, until_accuracy=0.0))
    assert sft.run_sft(a_warm_up(tmp_path, **common, max_steps=1)).accuracy is None


class Fingerprint(SortDigits):
    """Its reward tells two answers apart."""

    rubric = Rubric(WeightedReward("crc32", lambda sample: zlib.crc32(sample.completion.encode()) / 2**32))


class GreedyFingerprint(Fingerprint):
    sampling = Sampling(temperature=0.0, max_tokens=12)


def figure(tmp_path, environment, *, seed=0, **generation):
    """The validation figure of a model that does not answer the same each time."""
    path = tmp_path / "model"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    own = transformers.GenerationConfig(**{**model.generation_config.to_dict(), **generation})
    model.generation_config = own
    torch.manual_seed(seed)
    found = validation.Validation.of(environment, ChatTokenizer(path), 8, 0).accuracy(model)
    assert model.generation_config is own
    return found


@pytest.mark.parametrize(
    "generation",
    [{"top_p": 0.01}, {"top_k": 1}, {"min_p": 0.9}, {"repetition_penalty": 5.0}, {"num_beams": 2}],
    ids=str,
)
def test_validation_samples_by_the_temperature_alone_whatever_the_model_says(tmp_path, generation):
    assert figure(tmp_path, Fingerprint(), **generation) == figure(tmp_path, Fingerprint())
    assert figure(tmp_path, Fingerprint(), seed=1) != figure(tmp_path, Fingerprint())


def test_validation_at_temperature_0_is_greedy(tmp_path):
    figures = {figure(tmp_path, GreedyFingerprint(), seed=seed) for seed in range(3)}
    assert len(figures) == 1
    assert figures != {figure(tmp_path, Fingerprint())}


def test_the_command_writes_a_model_made_on_the_spot(tmp_path):
    output = tmp_path / "model"
    arguments = ["--tiny-model", "--environment", "sort_digits", "--max-steps", "1", "--threads", "1"]
    ended = CliRunner().invoke(command, [*arguments, "--output", str(output)])
    assert ended.exit_code == 0, ended.output
    assert "1 steps" in ended.output
    assert (output / "model.safetensors").is_file()


def test_the_command_needs_one_model(tmp_path):
    arguments = ["--environment", "sort_digits", "--output", str(tmp_path)]
    assert CliRunner().invoke(command, arguments).exit_code == 2
    assert CliRunner().invoke(command, [*arguments, "--tiny-model", "--model", str(tmp_path)]).exit_code == 2
