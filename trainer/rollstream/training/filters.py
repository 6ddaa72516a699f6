"""Which groups train: functions from the samples of one group to whether it is kept. They are called after the rewards.

`RolloutConfig.filter_fn` takes one of them, a function of one's own, or several in a list: then each must agree, and
the first that does not is the reason that is counted. Another bound: `partial(check_min_reward, threshold=0.8)`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from rollstream.environments.rubric import finite
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.types import FilterFn, Sample, SampleStatus

_LEAST_STD = 1e-6  # as in slime: rewards that differ by rounding alone teach nothing


def check_reward_nonzero_std(samples: list[Sample]) -> bool:
    """Whether the rewards differ: otherwise all advantages are 0, relative to the group.

    A group of one is kept, since its advantage is not relative to its group. (DAPO, arXiv 2503.14476, section 3.2.)
    """
    rewards = _rewards(samples)
    return len(rewards) == 1 or float(np.std(rewards)) > _LEAST_STD


def check_min_reward(samples: list[Sample], threshold: float = 0.5) -> bool:
    """Whether at least one sample has a reward above `threshold`."""
    return max(_rewards(samples)) > threshold


def check_response_diversity(samples: list[Sample], threshold: float = 0.5) -> bool:
    """Whether the different responses are at least this share, 0 to 1, of all."""
    if not 0 <= threshold <= 1:
        raise ConfigurationError(f"threshold of check_response_diversity is {threshold!r}: give a share from 0 to 1")
    return len({sample.response for sample in samples}) / len(samples) >= threshold


def check_reasonable_length(samples: list[Sample], min_tokens: int = 10, max_tokens: int = 2048) -> bool:
    """Whether the model wrote so many tokens a sample, on average; both bounds included."""
    if not 0 <= min_tokens <= max_tokens:
        raise ConfigurationError(
            f"min_tokens of check_reasonable_length is {min_tokens!r}: give 0 to max_tokens, which is {max_tokens!r}"
        )
    return min_tokens <= float(np.mean([sample.num_trained_tokens for sample in samples])) <= max_tokens


def check_any_success(samples: list[Sample]) -> bool:
    """Whether the model came to the end of at least one answer, instead of to a limit."""
    return any(sample.status is SampleStatus.COMPLETED for sample in samples)


def check_quality_and_diversity(samples: list[Sample]) -> bool:
    """Whether the rewards differ, and at least half of the responses."""
    return check_reward_nonzero_std(samples) and check_response_diversity(samples)


def why_dropped(samples: list[Sample], filters: Sequence[FilterFn]) -> str | None:
    """The name of the first filter that does not keep this group, and the reward if all have the same; else None.

    Raises `ConfigurationError` for a filter that answers anything but true or false.
    """
    for one in filters:
        kept = one(samples)
        if not isinstance(kept, bool | np.bool_):
            raise ConfigurationError(f"filter {_name(one)} returned {kept!r}: return True or False, and no coroutine")
        if not kept:
            rewards = {round(reward, 1) for reward in _rewards(samples)}
            return _name(one) + (f" (each reward {rewards.pop():g})" if len(rewards) == 1 else "")
    return None


def _rewards(samples: list[Sample]) -> list[float]:
    return [finite(sample.reward, f"the reward of {sample}") for sample in samples]


def _name(function: FilterFn) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
