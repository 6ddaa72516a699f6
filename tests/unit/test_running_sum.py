"""The environment `running_sum`: right cycles reach the sum, and one answer alone a third of the digits."""

from itertools import islice

import pytest

from rollstream.agents.problem_state import CycleOptions, InferenceProblemState
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import split_of
from rollstream.environments.rubric import RewardInput
from rollstream.environments.running_sum import (
    NUM_DIGITS,
    REASONING_TEMPLATE,
    SUMMARIZATION_TEMPLATE,
    RunningSum,
    RunningSumTurns,
    demonstrated,
    progress,
)
from tests.harness.builders import a_turn

DIGITS = "471938"
OPTIONS = CycleOptions(
    reasoning_prompt_template=REASONING_TEMPLATE, summarization_prompt_template=SUMMARIZATION_TEMPLATE
)


def reward(answer: str) -> float:
    return progress(RewardInput(completion=answer, assistant_messages=(answer,), reference_answer=DIGITS))


def test_right_turns_ask_and_answer_as_the_agent_does_and_reach_the_sum_in_three_cycles() -> None:
    state, rewards = InferenceProblemState(DIGITS, OPTIONS), []
    turns = demonstrated(DIGITS)
    for number, (asked, answer) in enumerate(turns):
        if number % 2 == 0:
            assert state.get_filled_reasoning_prompt() == asked
            state.update_reasoning(a_turn(text=answer))
            rewards.append(reward(answer))
        else:
            assert state.get_filled_summarization_prompt() == asked
            state.update_summarization(a_turn(text=answer))
    assert [answer for _, answer in turns] == ["4,11", "1938:11", "12,21", "38:21", "24,32", ":32"]
    assert rewards == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    assert max(len(answer) for _, answer in turns) < RunningSum.sampling.max_tokens, "there is room for its end"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("4,11", 1 / 3),
        ("24,32", 1.0),
        ("11,12", 0.5),
        ("4,11,12,21", 2 / 3),
        ("4,12", 0),
        ("4", 0),
        ("32", 0),
        ("5", 0),
        ("4,11,12", 0),
        ("", 0),
        ("4,", 0),
        ("4, 11", 0),
        ("a", 0),
    ],
)
def test_the_reward_is_how_far_the_answers_sums_come(answer: str, expected: float) -> None:
    assert reward(answer) == pytest.approx(expected)


def test_problems_of_the_splits_differ_and_turns_are_of_both_types() -> None:
    for split in ("train", "evaluate"):
        for task in islice(RunningSum().tasks(split, 3), 50):  # type: ignore[arg-type]
            digits = task.reference_answer or ""
            assert (len(digits), split_of(digits)) == (NUM_DIGITS, split)
    shown = list(islice(RunningSumTurns().tasks("train", 3), 12))
    assert {task.messages[0].content[-1] for task in shown} == {"=", "#"}
    assert all(task.demonstration == task.reference_answer for task in shown)


def test_both_are_built_in() -> None:
    assert load_environment("running_sum").rubric.scored_turn_types == {"reasoning"}
    assert load_environment("running_sum_turns").name == "running_sum_turns"
