"""A rubric: named reward functions and their weights; the reward is the weighted sum, the components are kept."""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import SupportsFloat

from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """What a reward function sees: the task and the answer as text. `assistant_messages` are the turns in order."""

    completion: str
    """Text of the last turn."""
    assistant_messages: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    reference_answer: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


RewardFn = Callable[[RewardInput], float]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One function of a rubric; weight 0 makes it a metric."""

    name: str
    function: RewardFn
    weight: float = 1.0


class Rubric:
    """Scores a sample by every function, in order."""

    def __init__(self, *rewards: WeightedReward) -> None:
        names = [reward.name for reward in rewards]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a rubric needs rewards with different names, got {names}")
        self.rewards = rewards

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """The weighted sum and the unweighted components; raises `RewardError` saying what gave no number."""
        components = {reward.name: _called(reward, sample) for reward in self.rewards}
        total = sum(reward.weight * components[reward.name] for reward in self.rewards)
        return finite(total, f"the weighted sum of {components}"), components


def finite(value: object, what: str) -> float:
    """`value` as a float: any number, one of numpy or torch too, but no text; raises `RewardError` naming `what`."""
    try:
        number = float(value) if isinstance(value, SupportsFloat) else math.nan
    except Exception as error:
        raise RewardError(f"{what} is {_shown(value)}, which is no number: {error}") from error
    if not math.isfinite(number):
        raise RewardError(f"{what} is {_shown(value)}, not a finite number")
    return number


def _called(reward: WeightedReward, sample: RewardInput) -> float:
    try:
        value = reward.function(sample)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # sys.exit in a reward function must not end the process that called it.
        raise RewardError(f"reward {reward.name!r} raised {type(error).__name__}: {error}") from error
    return finite(value, f"reward {reward.name!r}")


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
