"""`rewards`: what an answer is worth, by whether it is right and whether it ended by itself."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from rollstream.process.settings.options import CommandOptions
from rollstream.schemas.bounds import MAX_REWARD, MAX_SAMPLE_TOKENS

PURE_SUCCESS: Final = "pure_success"

Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class RewardSettings(CommandOptions):
    """The table; its defaults are the preset `pure_success`. Finished: the answer ended before max_tokens."""

    wrong_answer_not_finished: Reward = Field(default=0.0, description="A wrong answer that was cut off")
    wrong_answer_finished: Reward = Field(default=0.0, description="A wrong answer")
    no_answer_not_finished: Reward = Field(default=0.0, description="No answer, and cut off")
    no_answer_finished: Reward = Field(default=0.0, description="No answer")
    unparsable_not_finished: Reward = Field(default=0.0, description="An answer that can't be read, and cut off")
    unparsable_finished: Reward = Field(default=0.0, description="An answer that can't be read")
    correct_answer_not_finished: Reward = Field(default=1.0, description="A right answer that was cut off after it")
    correct_answer_finished: Reward = Field(default=1.0, description="A right answer")
    buffer_tokens: int = Field(
        default=0, ge=0, le=MAX_SAMPLE_TOKENS, description="In the last so many tokens below max_tokens a reward falls"
    )


def _preset(given: Any) -> Any:
    if isinstance(given, str):
        if given != PURE_SUCCESS:
            raise ValueError(f"must be {PURE_SUCCESS}, or a table of rewards: write the values of your preset")
        return {}
    return given


RewardChoice = Annotated[RewardSettings, BeforeValidator(_preset)]
"""A table, or the name of the preset."""
