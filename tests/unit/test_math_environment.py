"""The environment `math`: golden answers, and what it makes of references that can't be parsed."""

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Environment
from rollstream.environments.rewards.equivalence import bare
from rollstream.schemas.errors import ConfigurationError, RewardError
from tests.harness.reward_inputs import an_answer


@cache
def the_environment() -> Environment:
    """It takes seconds to make."""
    return load_environment("math")


@pytest.mark.parametrize(
    ("completion", "reference", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1),
        (r"so \boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt3}{2}", 1),
        (r"\boxed{1} and \boxed{2}", "2", 1),
        (r"\boxed{1} and \boxed{2}", "1", 0),
        (r"\boxed{\{2, 1\}}", r"$\{1, 2\}$", 1),
        (r"\boxed{x^2 + 2x + 1}", r"\((x+1)^2\)", 1),
        (r"\boxed{50\%}", "0.5", 1),
        (r"\boxed{10\text{ cm}}", "10", 1),
        (r"\boxed{x = 5}", "5", 1),
        (r"\fbox{5}", "5", 1),
        (r"\boxed{5} is \fbox{6}", "5", 1),
        (r"\boxed{101_2}", "101_3", 0),
        (r"\boxed{101_2}", "101_{2}", 1),
        (r"\boxed{0101_{2}}", "$101_2$", 1),
        (r"\boxed{12_3}", "101_2", 0),
        (r"\boxed{101}", "101_2", 1),
        (r"\boxed{-101_2}", "-101_3", 0),
        (r"\boxed{-101_2}", "-101_2", 1),
        (r"\boxed{(-101)_2}", "-101_2", 1),
        (r"\boxed{101_2}", "-101_2", 0),
        (r"\boxed{0.1_2}", "0.1_3", 0),
        (r"\boxed{10.10_2}", "10.1_2", 1),
        ("The answer is 0.1_2", "1_2", 0),
        ("The answer is 101_2", "101_3", 0),
        (r"\boxed{3a_1}", "3a_1+2", 0),
        (r"\boxed{x_1}", "x_2", 0),
        (r"\boxed{½}", "0.5", 1),
        (r"\boxed{1½}", "3/2", 1),
        ("The answer is ½", "0.5", 1),
        (r"\boxed{x² + x⁻¹}", r"\frac1x + x^2", 1),
        (r"\boxed{2√3}", r"2\sqrt{3}", 1),
        (r"\boxed{3e5}", "300000", 1),
        (r"\boxed{2.5e-3}", "0.0025", 1),
        (r"\boxed{300000}", "3e5", 1),
        (r"\boxed{e^3}", "e^3", 1),
        (r"\boxed{7\,000}", "7000", 1),
        (r"\boxed{7000}", r"7\,000", 1),
        (r"\boxed{1\,234\,567}", "1,234,567", 1),
        (r"\boxed{(1, 200)}", "1200", 0),
        ("\\boxed{\N{MINUS SIGN}5}", "-5", 1),
        (r"\boxed{[1, 2)}", "[1, 2)", 1),
        (r"\boxed{[1, 2)}", "(1, 2)", 0),
        ("The answer is 1,234", "1234", 1),
        ("The answer is 7", r"\boxed{7}", 1),
        ("\\boxed{\N{ARABIC-INDIC DIGIT FIVE}}", "5", 0),
        (r"\boxed{5", "6", 0),
        (r"\boxed{" + "1+" * 5000 + "1}", "5001", 0),
        ("", "5", 0),
        ("I don't know", "5", 0),
        ("word " * 20_000 + r"\boxed{5}" + " word" * 20_000, "5", 1),
        ("5" + " word" * 20_000, "5", 0),
    ],
)
def test_an_answer_is_right_if_it_is_mathematically_the_reference(
    completion: str, reference: str, expected: float
) -> None:
    assert the_environment().rubric.score(an_answer(completion, reference)) == (expected, {"correct": expected})


@pytest.mark.parametrize("reference", [None, "", " ", "$ $", "1+" * 1000 + "1"])
def test_a_reference_that_is_no_expression_leaves_the_answer_unscored(reference: str | None) -> None:
    with pytest.raises(RewardError, match=r"no reference answer|no mathematical expression"):
        the_environment().rubric.score(an_answer(r"\boxed{5}", reference))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("5", "5"),
        (" $5$ ", "5"),
        ("$$5$$", "5"),
        (r"\(5\)", "5"),
        (r"\[ 5 \]", "5"),
        (r"$\boxed{5}$", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("$1$ or $2$", "$1$ or $2$"),
        (r"\(1\) or \(2\)", r"\(1\) or \(2\)"),
        (r"\boxed{1} or \boxed{2}", r"\boxed{1} or \boxed{2}"),
    ],
)
def test_a_reference_loses_only_what_is_around_all_of_it(reference: str, expected: str) -> None:
    assert bare(reference) == expected


def test_scoring_sets_no_alarm_so_that_it_works_in_any_thread() -> None:
    environment, before = the_environment(), signal.getsignal(signal.SIGALRM)
    with ThreadPoolExecutor(1) as thread:
        scored = thread.submit(environment.rubric.score, an_answer(r"\boxed{5}", "5")).result()
    assert scored[0] == 1.0
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("name", ["math", "ifeval", "by_source", "multiple_choice", "structured_output"])
def test_an_environment_that_only_scores_says_where_tasks_come_from(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name!r} only scores answers .* source = 'jsonl'"):
        load_environment(name).tasks("train", 0)
