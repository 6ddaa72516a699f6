"""A rubric: named reward functions with weights. The reward is their weighted sum; their own values are kept too."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import SupportsFloat

from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """What a reward function gets: the task and the answer as text. `assistant_messages` are the turns in order."""

    completion: str
    """Text of the last turn."""
    assistant_messages: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    reference_answer: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


RewardFn = Callable[[RewardInput], float]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One reward function of a rubric. With weight 0 it is only reported and does not change the reward."""

    name: str
    function: RewardFn
    weight: float = 1.0


class Rubric:
    """Scores a sample with each of its reward functions, in their order."""

    def __init__(self, *rewards: WeightedReward) -> None:
        names = [reward.name for reward in rewards]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a rubric needs rewards with different names, got {names}")
        self.rewards = rewards

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """The weighted sum, and the value of each function without its weight.

        Raises `RewardError`, which names the function that gave no finite number.
        """
        components = {reward.name: _called(reward, sample) for reward in self.rewards}
        total = sum(reward.weight * components[reward.name] for reward in self.rewards)
        return finite(total, f"the weighted sum of {components}"), components


def finite(value: object, what: str) -> float:
    """`value` as a float within ±`MAX_REWARD`, also numpy's or torch's, but no text. A `RewardError` names `what`."""
    try:
        number = float(value) if isinstance(value, SupportsFloat) else math.nan
    except Exception as error:
        raise RewardError(f"{what} is {_shown(value)}, which is no number: {error}") from error
    if not math.isfinite(number):
        raise RewardError(f"{what} is {_shown(value)}, not a finite number")
    if abs(number) > MAX_REWARD:
        raise RewardError(f"{what} is {_shown(value)}, the bound is {MAX_REWARD:g}: scale it down")
    return number


def _called(reward: WeightedReward, sample: RewardInput) -> float:
    try:
        value = reward.function(sample)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # BaseException: a reward function may call sys.exit, which must not end this process.
        raise RewardError(f"reward {reward.name!r} raised {type(error).__name__}: {error}") from error
    return finite(value, f"reward {reward.name!r}")


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
