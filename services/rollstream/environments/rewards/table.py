"""The reward table of source document 003: what an answer is worth, by whether it is right and ended by itself."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from rollstream.environments.rewards.extraction import last_boxed
from rollstream.environments.rubric import RewardInput, RewardTurn, Rubric
from rollstream.process.settings.options import CommandOptions
from rollstream.schemas.bounds import MAX_REWARD, MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import RewardError
from rollstream.schemas.rollout import REASONING, answering

_RIGHT_FROM: Final = 0.5
_BOXED: Final = "\\boxed"

_Worth = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class RewardTable(CommandOptions):
    """The table; its defaults are the preset `pure_success`. Finished: the answer ended before max_tokens."""

    wrong_answer_not_finished: _Worth = Field(default=0.0, description="A wrong answer that was cut off")
    wrong_answer_finished: _Worth = Field(default=0.0, description="A wrong answer")
    no_answer_not_finished: _Worth = Field(default=0.0, description="No answer, and cut off")
    no_answer_finished: _Worth = Field(default=0.0, description="No answer")
    unparsable_not_finished: _Worth = Field(default=0.0, description="An answer that can't be read, and cut off")
    unparsable_finished: _Worth = Field(default=0.0, description="An answer that can't be read")
    correct_answer_not_finished: _Worth = Field(default=1.0, description="A right answer that was cut off after it")
    correct_answer_finished: _Worth = Field(default=1.0, description="A right answer")
    buffer_tokens: int = Field(
        default=0, ge=0, le=MAX_SAMPLE_TOKENS, description="In the last so many tokens below max_tokens a reward falls"
    )


class DiscountedTable(RewardTable):
    """The table as options of an environment."""

    discount_factor: float = Field(default=1.0, gt=0, le=1, description="Each token multiplies the reward by it")


def rewarded(score: float, answer: RewardTurn, table: RewardTable, discount: float) -> float:
    """The reward of an answer that its environment gave this score.

    No answer: nothing is boxed; it can't be read if nothing is in the box, or the box has no end. In the last
    `buffer_tokens` below the answer's `max_tokens` a reward falls to 0 in proportion. Each token multiplies it by
    `discount`. Raises `RewardError` where these need a number of tokens that is not known.
    """
    ended = "not_finished" if answer.is_truncated else "finished"
    value = float(getattr(table, f"{_kind(score, answer.text)}_{ended}"))
    num_tokens, most = answer.num_completion_tokens, answer.max_tokens
    if table.buffer_tokens:
        if num_tokens is None or most is None:
            raise _unknown("buffer_tokens", f"{num_tokens} tokens of at most {most}")
        value *= min(1.0, max(0.0, (most - num_tokens) / table.buffer_tokens))
    if discount == 1:
        return value
    if num_tokens is None:
        raise _unknown("discount_factor", f"{num_tokens} tokens")
    return float(value * discount**num_tokens)


@dataclass(frozen=True, slots=True)
class TabledRubric:
    """Scores as `correct` does, and gives what the table says of that score. The components stay those of `correct`."""

    correct: Rubric
    table: DiscountedTable
    scored_turn_types: frozenset[str] = field(default=frozenset({REASONING}))

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """Raises `RewardError` for a sample without turns: nobody knows whether its answer was cut off."""
        if not sample.turns:
            raise RewardError(
                "the row has no turns, so whether its answer was cut off is not known: score it without the options of "
                "the reward table"
            )
        score, components = self.correct.score(sample)
        return rewarded(score, answering(sample.turns)[-1], self.table, self.table.discount_factor), components


def _kind(score: float, text: str) -> str:
    if score >= _RIGHT_FROM:
        return "correct_answer"
    if _BOXED not in text:
        return "no_answer"
    return "wrong_answer" if (last_boxed(text) or "").strip() else "unparsable"


def _unknown(option: str, what: str) -> RewardError:
    return RewardError(f"{option} needs to know how long the answer is, but it has {what}: leave this option out")
