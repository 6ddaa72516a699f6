"""A rubric adds up weighted components; what is not a number gives no reward."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.errors import RewardError


def an_answer(completion: str = "blue") -> RewardInput:
    return RewardInput(completion=completion, assistant_messages=(completion,))


def length(sample: RewardInput) -> float:
    return float(len(sample.completion))


def is_blue(sample: RewardInput) -> bool:
    return sample.completion == "blue"


def test_the_reward_is_the_weighted_sum_and_the_components_are_kept_also_those_of_weight_0() -> None:
    weights = {"length": 0.5, "is_blue": 2.0, "metric": 0.0}
    functions = {"length": length, "is_blue": is_blue, "metric": length}
    rubric = Rubric(*(WeightedReward(name, functions[name], weight) for name, weight in weights.items()))
    assert rubric.score(an_answer()) == (4.0, {"length": 4.0, "is_blue": 1.0, "metric": 4.0})


@pytest.mark.parametrize("error", [KeyError("no such word"), SystemExit(3), asyncio.CancelledError()])
def test_a_function_that_raises_or_would_end_the_process_is_no_reward_of_zero(error: BaseException) -> None:
    def broken(_sample: RewardInput) -> float:
        raise error

    with pytest.raises(RewardError, match=f"reward 'broken' raised {type(error).__name__}"):
        Rubric(WeightedReward("broken", broken)).score(an_answer())


@pytest.mark.parametrize(
    "value", [True, 1, np.bool_(True), np.float32(1), np.int64(1), pytest.param("tensor", id="tensor")], ids=repr
)
def test_any_number_is_a_reward_and_becomes_a_float(value: Any) -> None:
    if value == "tensor":
        import torch

        value = torch.tensor(1.0)
    reward, components = Rubric(WeightedReward("one", lambda _sample: value)).score(an_answer())
    assert (reward, components) == (1.0, {"one": 1.0})
    assert {type(reward), type(components["one"])} == {float}


def test_a_person_may_still_interrupt() -> None:
    def interrupted(_sample: RewardInput) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Rubric(WeightedReward("interrupted", interrupted)).score(an_answer())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "is nan \\(float\\), not a finite number"),
        (math.inf, "is inf \\(float\\), not a finite number"),
        (None, "is None \\(NoneType\\), not a finite number"),
        ("0.5", "is '0.5' \\(str\\), not a finite number"),
        (10**400, "\\(int\\), which is no number: int too large"),
        (np.zeros(2), "\\(ndarray\\), which is no number: "),
        (-1e308, "is -1e\\+308 \\(float\\), the bound is 1e\\+09: scale it down"),
    ],
    ids=["nan", "inf", "None", "text", "huge", "array", "beyond the bound"],
)
def test_a_reward_that_is_no_finite_number_is_refused(value: Any, why: str) -> None:
    with pytest.raises(RewardError, match=f"reward 'odd' .*{why}"):
        Rubric(WeightedReward("odd", lambda _sample: value)).score(an_answer())


def test_a_weighted_sum_that_overflows_is_refused_with_its_components() -> None:
    rubric = Rubric(WeightedReward("length", length, 1e308), WeightedReward("is_blue", is_blue))
    with pytest.raises(RewardError, match=r"the weighted sum of .*'length': 4.0.* is inf"):
        rubric.score(an_answer())


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        Rubric(WeightedReward("one", length), WeightedReward("one", is_blue))
