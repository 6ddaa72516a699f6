"""The reward table as options of `math`: eight keys, the buffer below the bound of tokens, and the discount."""

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rewards.table import RewardTable, rewarded
from rollstream.environments.rubric import RewardInput, RewardTurn, Scores
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import RewardError, UnknownEnvironmentError
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, FinishReason
from tests.harness.reward_inputs import an_answer

KINDS = {
    "wrong_answer": r"\boxed{6}", "no_answer": "six", "unparsable": r"\boxed{", "correct_answer": r"\boxed{5}",
}  # fmt: skip
TABLE = {
    f"{kind}_{ended}": float(2 * row + column + 1)
    for row, kind in enumerate(KINDS)
    for column, ended in enumerate(("finished", "not_finished"))
}
"""A value of its own for each key, so that no two can be taken for each other."""


def a_reward_turn(text: str, *, ended: str = "finished", num_tokens: int | None = 10, **fields: str) -> RewardTurn:
    reason = FinishReason.STOP if ended == "finished" else FinishReason.LENGTH
    return RewardTurn(text=text, finish_reason=reason, num_completion_tokens=num_tokens, max_tokens=100, **fields)  # type: ignore[arg-type]


def math_with(**options: float) -> Scores:
    declared = {"math": Declaration.model_validate({"options": {name: str(one) for name, one in options.items()}})}
    return load_environment("math", declared).rubric


def answered(*turns: RewardTurn, completion: str) -> RewardInput:
    return RewardInput(
        completion=completion, assistant_messages=(completion,), reference_answer="5", turns=turns
    )  # fmt: skip


def test_each_of_the_eight_keys_is_the_reward_of_its_answers() -> None:
    rubric = math_with(**TABLE)
    for kind, text in KINDS.items():
        for ended in ("finished", "not_finished"):
            sample = answered(a_reward_turn(text, ended=ended), completion=text)
            correct = float(kind == "correct_answer")
            assert rubric.score(sample) == (TABLE[f"{kind}_{ended}"], {"correct": correct})


def test_without_options_a_right_answer_is_worth_1_also_cut_off() -> None:
    sample = answered(a_reward_turn(r"\boxed{5}", ended="not_finished"), completion=r"\boxed{5}")
    assert load_environment("math").rubric.score(sample)[0] == 1.0


@pytest.mark.parametrize(("num_tokens", "expected"), [(80, 1.0), (90, 0.5), (95, 0.25), (100, 0.0)])
def test_in_the_buffer_a_reward_falls_to_nothing(num_tokens: int, expected: float) -> None:
    answer = a_reward_turn(r"\boxed{5}", num_tokens=num_tokens)
    assert rewarded(1.0, answer, RewardTable(buffer_tokens=20), 1.0) == expected


def test_each_token_multiplies_the_reward_by_the_discount() -> None:
    sample = answered(a_reward_turn(r"\boxed{5}"), completion=r"\boxed{5}")
    assert math_with(discount_factor=0.9).score(sample)[0] == pytest.approx(0.9**10)


def test_in_cycles_the_last_reasoning_counts_and_not_the_summary_after_it() -> None:
    reasoning = a_reward_turn(r"\boxed{5}", ended="not_finished", turn_type=REASONING)
    summary = a_reward_turn("so far", turn_type=SUMMARIZATION)
    rubric = math_with(**TABLE)
    assert (
        rubric.score(answered(reasoning, summary, completion=reasoning.text))[0] == TABLE["correct_answer_not_finished"]
    )
    assert rubric.scored_turn_types == {REASONING}  # type: ignore[attr-defined]


def test_what_is_not_known_leaves_the_answer_unscored() -> None:
    with pytest.raises(RewardError, match=r"no turns, so whether its answer was cut off is not known"):
        math_with(**TABLE).score(an_answer(r"\boxed{5}", "5"))
    unknown = answered(a_reward_turn(r"\boxed{5}", num_tokens=None), completion=r"\boxed{5}")
    for option, value in (("discount_factor", 0.9), ("buffer_tokens", 5)):
        with pytest.raises(RewardError, match=rf"{option} needs to know how long"):
            math_with(**{option: value}).score(unknown)
    with pytest.raises(RewardError, match="no reference answer"):
        math_with(**TABLE).score(RewardInput(completion="5", assistant_messages=("5",), turns=(a_reward_turn("5"),)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("corect_answer_finished", 1), ("buffer_tokens", -1), ("buffer_tokens", 0.5), ("discount_factor", 1.5),
     ("discount_factor", 0), ("no_answer_finished", float("nan")), ("unparsable_finished", 1e10)],
)  # fmt: skip
def test_an_option_that_is_unknown_or_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(UnknownEnvironmentError, match=name):
        math_with(**{name: value})
