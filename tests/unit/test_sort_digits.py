"""sort_digits: endless tasks in splits that never overlap."""

from itertools import islice

from rollstream.environments.rubric import RewardInput
from rollstream.environments.sort_digits import SortDigits


def contents(split: str, seed: int, count: int) -> set[str]:
    return {task.messages[0].content for task in islice(SortDigits().tasks(split, seed), count)}  # type: ignore[arg-type]


def test_the_answer_is_the_sorted_digits() -> None:
    for task in islice(SortDigits().tasks("train", 7), 50):
        digits = task.messages[0].content
        assert digits.endswith("=")
        assert 3 <= len(digits) - 1 <= 8
        assert task.reference_answer == task.demonstration == "".join(sorted(digits[:-1]))


def test_no_task_is_in_two_splits_and_a_seed_gives_the_same_tasks_again() -> None:
    splits = [contents("train", 1, 4000), contents("validate", 2, 1000), contents("evaluate", 3, 1000)]
    assert len(set.union(*splits)) == sum(map(len, splits))
    assert contents("train", 1, 100) == contents("train", 1, 100) != contents("train", 2, 100)


def test_only_the_sorted_digits_alone_are_right() -> None:
    for completion, expected in {"01259": 1.0, "1259": 0.0, "01259 ": 0.0, "": 0.0}.items():
        sample = RewardInput(completion=completion, assistant_messages=(completion,), reference_answer="01259")
        assert SortDigits.rubric.score(sample) == (expected, {"exact_match": expected})
