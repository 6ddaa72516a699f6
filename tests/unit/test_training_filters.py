"""Which groups the filters of the training library keep, and what is counted of those that they drop."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from rollstream.schemas.errors import ConfigurationError, RewardError
from rollstream.training.filters import (
    check_any_success,
    check_min_reward,
    check_quality_and_diversity,
    check_reasonable_length,
    check_response_diversity,
    check_reward_nonzero_std,
    why_dropped,
)
from rollstream.training.types import Sample, SampleStatus


def a_group(
    *rewards: float, responses: str = "", lengths: tuple[int, ...] = (), status: str = "completed"
) -> list[Sample]:
    """A sample for each reward; its response is one letter of `responses`, or its own."""
    return [
        Sample(
            "2+2",
            response=responses[index] if responses else str(index),
            tokens=[1] * (3 + length),
            loss_mask=[0] * 3 + [1] * length,
            reward=reward,
            group_index=4,
            index=index,
            status=SampleStatus(status),
        )
        for index, (reward, length) in enumerate(zip(rewards, lengths or (20,) * len(rewards), strict=True))
    ]


@pytest.mark.parametrize(
    ("check", "group", "kept"),
    [
        (check_reward_nonzero_std, a_group(0, 1), True),
        (check_reward_nonzero_std, a_group(1, 1, 1), False),
        (check_reward_nonzero_std, a_group(0.1 + 0.2, 0.3), False),
        (check_reward_nonzero_std, a_group(0.5, 0.50001), True),
        (check_reward_nonzero_std, a_group(1), True),
        (check_min_reward, a_group(0, 0.8), True),
        (check_min_reward, a_group(0.2, 0.5), False),
        (partial(check_min_reward, threshold=0.4), a_group(0.2, 0.5), True),
        (partial(check_min_reward, threshold=-2), a_group(-3, -1), True),
        (check_response_diversity, a_group(0, 0, 0, 0, responses="aabb"), True),
        (check_response_diversity, a_group(0, 0, 0, 0, responses="aaaa"), False),
        (partial(check_response_diversity, threshold=0.75), a_group(0, 0, 0, 0, responses="aabb"), False),
        (check_reasonable_length, a_group(0, 0, lengths=(10, 10)), True),
        (check_reasonable_length, a_group(0, 0, lengths=(9, 10)), False),
        (check_reasonable_length, a_group(0, 0, lengths=(0, 4096)), True),
        (check_reasonable_length, a_group(0, 0, lengths=(1, 4096)), False),
        (partial(check_reasonable_length, min_tokens=2, max_tokens=3), a_group(0, 0, lengths=(1, 3)), True),
        (check_any_success, a_group(0, 0), True),
        (check_any_success, a_group(1, 1, status="truncated"), False),
        (check_any_success, a_group(1, status="truncated") + a_group(0), True),
        (check_quality_and_diversity, a_group(0, 1), True),
        (check_quality_and_diversity, a_group(1, 1), False),
        (check_quality_and_diversity, a_group(0, 1, 0, responses="aaa"), False),
    ],
)
def test_golden_groups(check: Any, group: list[Sample], kept: bool) -> None:
    assert check(group) is kept


@pytest.mark.parametrize("check", [check_reward_nonzero_std, check_min_reward, check_quality_and_diversity])
def test_a_filter_of_rewards_refuses_a_sample_that_has_none(check: Any) -> None:
    without = Sample("2+2", group_index=4, index=1)
    with pytest.raises(RewardError, match="sample 1 of group 4"):
        check([*a_group(1.0), without])


@pytest.mark.parametrize(
    "check",
    [
        partial(check_response_diversity, threshold=1.5),
        partial(check_response_diversity, threshold=math.nan),
        partial(check_reasonable_length, min_tokens=5, max_tokens=4),
        partial(check_reasonable_length, min_tokens=-1),
    ],
)
def test_a_bound_that_cannot_be_is_refused(check: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"check_.*give"):
        check(a_group(0, 1))


def keep(samples: list[Sample]) -> bool:
    return True


def test_the_first_filter_that_does_not_keep_a_group_is_the_reason() -> None:
    strict = partial(partial(check_min_reward, threshold=0.5), threshold=0.8)
    assert why_dropped(a_group(0, 1), []) is None
    assert why_dropped(a_group(0, 1), [keep, strict, check_any_success]) is None
    assert why_dropped(a_group(0, 0.6), [keep, strict, check_any_success]) == "check_min_reward"
    assert why_dropped(a_group(0, 0.6), [lambda samples: np.False_]) == "<lambda>"


@pytest.mark.parametrize(("reward", "said"), [(0.0, "0"), (1.0, "1"), (0.25, "0.2"), (-0.5, "-0.5")])
def test_a_flat_group_says_its_reward_so_that_too_easy_and_too_hard_are_counted_apart(reward: float, said: str) -> None:
    expected = f"check_reward_nonzero_std (each reward {said})"
    assert why_dropped(a_group(reward, reward), [check_reward_nonzero_std]) == expected


async def late(samples: list[Sample]) -> bool:
    return True


@pytest.mark.parametrize("answer", [None, 1, "yes", [True]])
def test_a_filter_that_does_not_say_true_or_false_is_refused(answer: Any) -> None:
    def answering(samples: list[Sample]) -> Any:
        return answer

    with pytest.raises(ConfigurationError, match=r"answering.*True or False"):
        why_dropped(a_group(0, 1), [answering])


def test_a_filter_that_would_have_to_be_awaited_is_refused() -> None:
    waiting = late([])
    with pytest.raises(ConfigurationError, match="coroutine"):
        why_dropped(a_group(0, 1), [lambda samples: waiting])
    waiting.close()
