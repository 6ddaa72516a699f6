"""The warm-up by SFT: masked loss on two small rows, masked gradients, and a short run on a real environment."""

import math
import zlib
from collections.abc import Iterator

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
from rollstream.training.sft.settings import SftSettings
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
sft = Late("rollstream.training.sft.sft")
validation = Late("rollstream.training.sft.validation")


def two_rows():
    return [sft.Demonstration(prompt=[5, 6, 7], answer=[8, 1]), sft.Demonstration(prompt=[5], answer=[9, 1])]


def test_rows_are_padded_on_the_right_and_labels_cover_the_answers_alone():
    input_ids, labels = sft.padded(two_rows())
    assert input_ids.tolist() == [[5, 6, 7, 8, 1], [5, 9, 1, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 8, 1], [-100, 9, 1, -100, -100]]


def test_the_loss_is_the_mean_over_the_answers_tokens_of_both_rows():
    _, labels = sft.padded(two_rows())
    logits = torch.zeros(2, 5, 16)
    logits[0, 2, 8] = math.log(5.0)  # predicts the first answer token with 5 / (5 + 15) = 1/4; the others: 1/16
    expected = (math.log(4) + 3 * math.log(16)) / 4
    assert sft.masked_loss(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_positions_that_predict_prompts_or_padding_get_no_gradient():
    _, labels = sft.padded(two_rows())
    logits = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    sft.masked_loss(logits, labels).backward()
    trained = logits.grad.abs().sum(dim=-1) > 0
    assert trained.tolist() == [[False, False, True, True, False], [True, True, False, False, False]]


def test_an_environment_of_a_users_own_is_found_in_the_runs_file(tmp_path):
    (tmp_path / "rollstream.toml").write_text(
        'run = "demo"\n[environments.own]\npath = "tests.harness.unruly_environment.Unruly"\n'
    )
    words = ["--tiny-model", "--output", str(tmp_path / "warm"), "--environment", "own"]
    refused = CliRunner().invoke(command, words)
    assert "'own' is not one of the environments of this run" in str(refused.exception)
    loaded = CliRunner().invoke(command, [*words, "--config", str(tmp_path / "rollstream.toml")])
    assert "environment 'unruly' has no demonstrations" in str(loaded.exception)


def a_warm_up(tmp_path, **settings):
    source = tmp_path / "source"
    write_tiny_model(source, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    values = {
        "model_path": source,
        "output": tmp_path / "warm",
        "environment": "sort_digits",
        "device": "cpu",
        "threads": 1,
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
