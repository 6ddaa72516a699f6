"""The work that `bench loop` measures: models whose answers follow a chain, and settings that the stages accept."""

import math
from pathlib import Path

import pytest
import tomli_w

from rollstream.environments.load import load_environment
from rollstream.environments.rubric import RewardInput
from rollstream.generator.settings import GeneratorSettings
from rollstream.local.demo.options import DemoOptions
from rollstream.local.tiny_model import VOCABULARY
from rollstream.producers.settings import ProducerSettings
from rollstream.trainer.settings import TrainerSettings
from tests.bench.chain_model import STOP, endless, spread_lengths, write_chain_model
from tests.bench.coin_task import parity
from tests.bench.loop_shapes import shape_of

CHAIN = {"0": {"0": 0.9, "1": 0.1}, "1": {"1": 0.75, STOP: 0.25}}


def probabilities_after(model_path: Path, text: str) -> dict[str, float]:
    """Of the next character, as the model says; those below one in a million are left out."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path)
    ids = torch.tensor([[VOCABULARY.index(character) for character in text]])
    with torch.no_grad():
        following = model(ids).logits[0, -1].softmax(-1).tolist()
    return {VOCABULARY[token]: one for token, one in enumerate(following) if one > 1e-6}


def test_a_chain_model_gives_the_next_character_the_probability_of_the_chain(tmp_path: Path) -> None:
    write_chain_model(tmp_path, CHAIN, max_length=64)
    assert probabilities_after(tmp_path, "1110") == pytest.approx({"0": 0.9, "1": 0.1}, abs=1e-4)
    assert probabilities_after(tmp_path, "001") == pytest.approx({"1": 0.75, STOP: 0.25}, abs=1e-4)


def test_an_endless_chain_never_stops() -> None:
    assert endless("01") == {"0": {"0": 0.5, "1": 0.5}, "1": {"0": 0.5, "1": 0.5}}


def test_spread_lengths_differ_from_start_to_start_by_their_mean() -> None:
    chain = spread_lengths(["abc", "def", "ghi"], 60)
    means = [sum(1 / (1 - chain[phase][phase]) for phase in phases) for phases in ("abc", "def", "ghi")]
    assert means[1] == pytest.approx(60)
    assert math.log(means[2] / means[1]) == pytest.approx(math.log(means[1] / means[0]))
    assert all(sum(following.values()) == pytest.approx(1) for following in chain.values())
    assert chain["c"][STOP] == chain["a"]["b"]


def test_the_coin_is_the_parity_of_the_code_points() -> None:
    rewards = [parity(RewardInput(completion=text, assistant_messages=(text,))) for text in ("a", "aa")]
    assert rewards == [1.0, 0.0]


@pytest.mark.parametrize("name", ["demo", "uniform", "varied"])
def test_the_stages_accept_the_settings_of_every_shape(name: str, tmp_path: Path) -> None:
    shape = shape_of(name, 64)
    shared = {"run": "bench", "weight_store": str(tmp_path / "weights")}
    config = tmp_path / "rollstream.toml"
    config.write_text(tomli_w.dumps({**shared, **shape.stage_settings(DemoOptions(run_dir=tmp_path))}))
    producer = ProducerSettings.load(config)
    assert producer.groups_per_step * producer.group_size == 512
    assert producer.sampling is not None
    assert producer.sampling.max_tokens == shape.max_tokens
    tasks = load_environment(producer.environment, producer.environments).tasks("train", 1)
    assert next(tasks).messages[0].content
    engine = GeneratorSettings.load(config).engine
    assert engine.max_model_len is not None
    assert engine.max_model_len > shape.max_tokens
    trainer = TrainerSettings.load(config)
    assert trainer.train_without_spread
    assert trainer.train_truncated is (name != "demo")


@pytest.mark.parametrize(("tokens", "groups"), [(7, 32), (64, 32), (512, 4), (4096, 1)])
def test_long_uniform_answers_make_steps_of_fewer_groups(tokens: int, groups: int) -> None:
    assert shape_of("uniform", tokens).groups_per_step == groups
