"""The environment of `bench long-tail`: one answer, one number."""

from itertools import islice

import pytest

from rollstream.environments.rubric import RewardInput
from tests.bench.long_answers import LongAnswers


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
