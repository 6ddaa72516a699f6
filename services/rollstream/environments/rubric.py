"""A rubric: named reward functions with weights. The reward is their weighted sum; their own values are kept too."""

import math
import reprlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, Self, SupportsFloat

from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message, ToolCall
from rollstream.schemas.rollout import REASONING, FinishReason, ToolAnswer, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTurn:
    """One turn of the answer, without its tokens."""

    text: str
    turn_type: str = "answer"
    turn_number: int = 0
    """Which turn of its type."""
    reasoning: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    tool_calls: tuple[ToolCall, ...] = ()
    tool_answers: tuple[ToolAnswer, ...] = ()
    num_completion_tokens: int | None = None
    """Sampled tokens. None: not known, and so is `max_tokens`, the most that were allowed."""
    max_tokens: int | None = None

    @classmethod
    def of(cls, turn: Turn, max_tokens: int) -> Self:
        """`max_tokens`: of the prompt, for a turn that names no bound of its own."""
        known = {one.name: getattr(turn, one.name) for one in fields(cls)}
        return cls(**{**known, "max_tokens": turn.max_tokens or max_tokens})

    @property
    def is_truncated(self) -> bool:
        """Whether it ended at a limit, or its client left."""
        return self.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """What a reward function gets: the task and the answer as text.

    `assistant_messages`: the turns that answer, in order. Of an agent that reasons in cycles it is the last reasoning.
    """

    completion: str
    """Text of the last turn that answers."""
    assistant_messages: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    reference_answer: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    turns: tuple[RewardTurn, ...] = ()
    """Empty where only the texts are known, e.g. those of a file."""
    observations: dict[str, str] = field(default_factory=dict)
    """What the agent saw, e.g. the verdict of its tools' session."""

    def of_turn(self, number: int) -> "RewardInput":
        """The same task, as if turn `number` were the whole answer."""
        turn = self.turns[number]
        return replace(self, completion=turn.text, assistant_messages=(turn.text,), turns=(turn,))


RewardFn = Callable[[RewardInput], float]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One reward function of a rubric. With weight 0 it is only reported and does not change the reward."""

    name: str
    function: RewardFn
    weight: float = 1.0


class Scores(Protocol):
    """What scores a sample. If it has `scored_turn_types`, turns of these types are scored by themselves too."""

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """The reward and its components; `RewardError` if there is none."""
        ...


class Rubric:
    """Scores a sample with each of its reward functions, in their order.

    Turns of `scored_turn_types`, by default those that reason in cycles, are scored by themselves too, each as if it
    were the whole answer.
    """

    def __init__(self, *rewards: WeightedReward, scored_turn_types: Collection[str] = (REASONING,)) -> None:
        names = [reward.name for reward in rewards]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a rubric needs rewards with different names, got {names}")
        self.rewards = rewards
        self.scored_turn_types = frozenset(scored_turn_types)

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
