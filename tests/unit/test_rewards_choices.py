"""Multiple choice: which letter a completion names, rule by rule."""

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rewards.letters import chosen_letter
from rollstream.schemas.errors import RewardError
from tests.harness.reward_inputs import an_answer


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{(B)}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"Answer: A, so \boxed{B}", "B"),
        (r"\boxed{A} no \boxed{B}", "B"),
        (r"\boxed{A, B}", None),
        (r"\boxed{7}", None),
        ("<answer>B</answer>", "B"),
        ("<answer>(B) Paris</answer>", "B"),
        ("<answer>B or C</answer>", None),
        ("The answer is (B).", "B"),
        ("the answer is B", "B"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("answer: **B**", "B"),
        ("Answer:\n(B)", "B"),
        ("The correct option is B because A is wrong", "B"),
        ("Option B is correct", "B"),
        ("The answer is A. No, the answer is B.", "B"),
        ("The answer is B, and A is wrong", "B"),
        ("The answer is A or B.", None),
        ("Answer: A and B", None),
        ("Answer: A/B", None),
        ("The answer is a dog", None),
        ("The answer is I'm not sure", None),
        ("B", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("A is wrong, so\nB) Paris", "B"),
        ("B\nor something else", None),
        ("(A) or (B)", None),
        ("A cat sat", None),
        ("I think", None),
        ("b", None),
        ("", None),
        ("\N{GREEK CAPITAL LETTER BETA}", None),
        ("Answer: " * 12_500, None),
        ("word " * 20_000 + "Answer: B", "B"),
    ],
)
def test_a_completion_names_one_letter_or_none(completion: str, letter: str | None) -> None:
    assert chosen_letter(completion) == letter


def test_only_the_letters_of_the_choices_count() -> None:
    rubric = load_environment("multiple_choice").rubric
    choices = ["red", "green", "blue"]
    assert rubric.score(an_answer("Answer: C", "C", choices=choices)) == (1.0, {"correct": 1.0, "answered": 1.0})
    assert rubric.score(an_answer("Answer: D", "C", choices=choices)) == (0.0, {"correct": 0.0, "answered": 0.0})
    assert rubric.score(an_answer("Answer: D", "(C)"))[1] == {"correct": 0.0, "answered": 1.0}


@pytest.mark.parametrize(
    ("reference", "choices"), [("D", ["red", "green", "blue"]), ("green", ["red", "green"]), ("A", ["red"]), ("A", 3)]
)
def test_a_row_whose_right_letter_is_no_choice_is_unscored(reference: str, choices: object) -> None:
    with pytest.raises(RewardError, match=r"no letter of|must be a JSON list"):
        load_environment("multiple_choice").rubric.score(an_answer("Answer: A", reference, choices=choices))
