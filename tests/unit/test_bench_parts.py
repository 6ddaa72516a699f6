"""The parts of the benches: sides in turn, shapes of work, environments, and figures by hand-computed numbers."""

import math
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
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
from tests.bench.length_bias import TRAINED, answers_of, figures, ks_distance, too_old_share_of_tokens
from tests.bench.loop import _figures
from tests.bench.loop_shapes import shape_of
from tests.bench.loop_sides import WARM_UP_STEPS, _read_theirs, trl_requirements
from tests.bench.pairs import compared, in_turn, medians
from tests.bench.tasks import LongAnswers, parity


def test_sides_run_in_turn_and_none_always_comes_first() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], int]:
        return lambda: order.append(name) or len(order)

    pairs = in_turn({"ours": side("ours"), "theirs": side("theirs")}, 3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert pairs == [{"ours": 1, "theirs": 2}, {"ours": 4, "theirs": 3}, {"ours": 5, "theirs": 6}]


def test_the_ratio_is_the_median_of_the_pairs_with_its_quartiles() -> None:
    assert compared([0.5, 2.0, 1.0, 1.5]) == {
        "ratio": 1.25, "ratio_quartiles": [0.875, 1.625], "ratios": [0.5, 2.0, 1.0, 1.5]
    }  # fmt: skip
    assert compared([0.5])["ratio_quartiles"] == [0.5, 0.5]
    assert medians([{"seconds": 1.0}, {"seconds": 9.0}, {"seconds": 2.0}]) == {"seconds": 2.0}


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


def test_speed_is_compared_with_the_trl_that_gradients_are_compared_with() -> None:
    assert f"trl=={version('trl')}" in trl_requirements().read_text().split()


def test_the_rewards_of_trl_are_those_of_the_measured_steps() -> None:
    num_steps = WARM_UP_STEPS + 8
    steps = [{"ended": 2.0 * step, "cpu_seconds": 3.0 * step, "trained_tokens": 10} for step in range(num_steps)]
    measured = _read_theirs({"steps": steps, "rewards": [9.0] * WARM_UP_STEPS + [0.0, 0.5, 0, 0, 0, 0, 0.5, 1.0]})
    assert measured.steps_per_minute == pytest.approx(30)
    assert measured.quarters == (0.25, 0.75)
    found = _figures([measured])
    assert found["reward_of_first_and_last_quarter"] == [[0.25, 0.75]]
    assert found["policy_lag_mean"] == [0.0]


@pytest.mark.parametrize(
    ("completion", "reward"), [("0129", 1.0), ("0129   ", 1.0), ("012   ", 0.0), ("01 29", 0.0), ("", 0.0)]
)
def test_spaces_around_an_answer_do_not_count(completion: str, reward: float) -> None:
    asked = RewardInput(completion=completion, assistant_messages=(completion,), reference_answer="0129")
    assert LongAnswers.rubric.score(asked) == (reward, {"sorted_digits": reward})


def test_tasks_repeat_with_their_seed_and_no_prompt_comes_twice() -> None:
    tasks, again, others = (list(islice(LongAnswers().tasks("train", seed), 500)) for seed in (1, 1, 2))
    prompts = [task.messages[0].content for task in tasks]
    assert tasks == again
    assert len(set(prompts)) == 500
    assert not set(prompts) & {task.messages[0].content for task in others}
    assert all(task.reference_answer == "".join(sorted(task.messages[0].content.rstrip("="))) for task in tasks)


ANSWERS = [("short", 10), ("short", 30), ("long", 20), ("long", 140), ("flat", 100), ("flat", 0), ("open", 900)]
OUTCOMES = {"short": TRAINED, "long": "too_old", "flat": "no_spread", "without answers": "too_old"}


def lengths(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_distance_is_the_largest_gap_between_the_two_curves() -> None:
    # Below 3 the parts at most as long are 2/2 and 2/4.
    assert ks_distance(lengths(1, 2), lengths(1, 2, 3, 4)) == pytest.approx(0.5)
    # At 5: 1/3 and 3/4; at 1: 0 and 1/4.
    assert ks_distance(lengths(9, 5, 9), lengths(1, 5, 5, 9)) == pytest.approx(3 / 4 - 1 / 3)


def test_the_same_lengths_in_another_order_and_number_have_no_distance() -> None:
    assert ks_distance(lengths(7, 3, 3, 7), lengths(3, 7)) == 0.0


def test_of_no_lengths_at_all_everything_is_missing() -> None:
    assert ks_distance(lengths(), lengths(1, 2)) == 1.0
    assert ks_distance(lengths(1), lengths()) == 1.0


def test_only_answers_with_tokens_of_the_counted_groups_are_taken() -> None:
    found = answers_of(ANSWERS, OUTCOMES)
    assert found.lengths.tolist() == [10, 30, 20, 140, 100]
    assert found.trained.tolist() == [10, 30]
    assert found.lengths[found.are_too_old].tolist() == [20, 140]


def test_the_share_dropped_for_lag_is_of_tokens_and_other_reasons_are_counted_apart() -> None:
    assert too_old_share_of_tokens(answers_of(ANSWERS, OUTCOMES)) == 160 / 300
    found = figures(answers_of(ANSWERS, OUTCOMES))
    assert found["num_tokens"] == 300
    assert found["num_samples"] == 5
    assert found["groups"] == {TRAINED: 1, "too_old": 2, "no_spread": 1}
    # At 30 both trained answers are reached, and three of all five.
    assert found["ks_distance"] == 0.4
    assert found["tokens_of_an_answer"]["generated"]["p50"] == 30
    assert found["tokens_of_an_answer"]["trained"]["mean"] == 20
    # Quarters of 10, 20 | 30 | 100 | 140.
    assert found["too_old_share_by_quartile_of_length"] == [0.5, 0.0, 0.0, 1.0]


def test_a_run_in_which_nothing_closed_has_figures_too() -> None:
    assert too_old_share_of_tokens(answers_of([], {})) == 0.0
    found = figures(answers_of([], {}))
    assert found["ks_distance"] == 1.0
    assert found["tokens_of_an_answer"] == {"generated": {}, "trained": {}}
