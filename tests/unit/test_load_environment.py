"""Environments by name, and the rubrics that add up their weighted components."""

import asyncio
import builtins
import math
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenEnvironmentError, RewardError, UnknownEnvironmentError
from tests.harness.unruly_environment import Unruly


class Colors(Unruly):
    """An environment of a user's own."""

    name = "colors"

    def __init__(self, favorite: str = "blue") -> None:
        self.favorite = favorite


class Keyed(Colors):
    """An environment whose making shows its key."""

    def __init__(self, raised: str, api_key: str, exact: str) -> None:
        kind: type[BaseException] = getattr(builtins, raised)
        try:
            raise LookupError(f"no account of {api_key}")
        except LookupError as error:
            raise kind(f"key {api_key!r}: https://host/{api_key} refused it, exact={exact}, 410") from error


class Colorless:
    """No environment at all."""

    name = "colorless"


def declared(path: str, **options: str) -> dict[str, Declaration]:
    return {"colors": Declaration(path=path, options=options)}


def test_a_users_environment_is_loaded_by_the_name_under_which_it_is_declared() -> None:
    loaded = load_environment("colors", declared(f"{__name__}.Colors", favorite="red"))
    assert isinstance(loaded, Colors)
    assert loaded.favorite == "red"


@pytest.mark.parametrize("name", ["no_such", "os.abort", f"{__name__}.Colors", "", "x" * 3_000_000])
def test_a_name_that_is_not_declared_imports_nothing_and_is_told_what_there_is(name: str) -> None:
    with pytest.raises(
        UnknownEnvironmentError,
        match=r"of this run: by_source, colors, ifeval, math, multiple_choice, reasoning_gym, running_sum, "
        r"running_sum_turns, session, sort_digits, structured_output, word_count; .* as ",
    ) as refused:
        load_environment(name, declared(f"{__name__}.Colors"))
    assert refused.value.exit_code == 78
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("path", ["no.such.Thing", f"{__name__}.Missing", "rollstream.no_such.Thing"])
def test_a_declared_path_that_leads_to_nothing_is_named(path: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=rf"\[environments.colors\] path = '{path}' names nothing"):
        load_environment("colors", declared(path))


@pytest.mark.parametrize(
    ("name", "declaration", "why"),
    [
        ("colors", Declaration(options={"favorite": "red"}), r"\[environments.colors\] needs its `path`"),
        ("sort_digits", Declaration(path=f"{__name__}.Colors"), r"\[environments.sort_digits\] is built in"),
    ],
)
def test_a_built_in_name_takes_no_path_and_every_other_one_needs_it(
    name: str, declaration: Declaration, why: str
) -> None:
    with pytest.raises(UnknownEnvironmentError, match=why):
        load_environment(name, {name: declaration})


def test_options_that_an_environment_does_not_take_are_refused() -> None:
    with pytest.raises(UnknownEnvironmentError, match=r"does not take its options size as .* takes no arguments"):
        load_environment("sort_digits", {"sort_digits": Declaration(options={"size": "3"})})


@pytest.mark.parametrize("raised", ["ValueError", "TypeError", "RuntimeError", "KeyError", "SystemExit"])
@pytest.mark.parametrize("secret", ["hunter2", 'it\'s a \\\\ "secret"\n', "x1"])
def test_the_values_of_options_are_in_no_error_of_a_users_code(raised: str, secret: str) -> None:
    options = {"raised": raised, "api_key": secret, "exact": "1"}
    with pytest.raises((UnknownEnvironmentError, BrokenEnvironmentError)) as refused:
        load_environment("colors", declared(f"{__name__}.Keyed", **options))
    shown = "".join(traceback.format_exception(refused.value))
    assert "https://host/*** refused it, exact=***, 410" in str(refused.value)
    for written in (secret, repr(secret), repr(repr(secret)), secret.strip("\n")):
        assert written not in shown
    assert "in __init__" in shown, "the place in the user's code is lost"


def test_what_is_no_environment_is_told_what_it_lacks() -> None:
    with pytest.raises(UnknownEnvironmentError, match="is a Colorless without rubric, sampling, tasks"):
        load_environment("colors", declared(f"{__name__}.Colorless"))


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("def (", "SyntaxError"),
        ("import no_such_dependency", "ModuleNotFoundError"),
        ("raise RuntimeError('no data set')", "RuntimeError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def Task(): raise SystemExit(3)", "SystemExit"),
        ("def Task(): raise ValueError('no data set')", "ValueError"),
        ("Task = 7", "TypeError"),
    ],
)
def test_a_users_code_that_raises_while_loading_is_named_with_what_it_raised(
    code: str, raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"users_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BrokenEnvironmentError, match=f"'colors' raised {raised} while loading: .*; mend its code"):
        load_environment("colors", declared(f"{module}.Task"))


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
