"""`Failure`: why a sample, or its scoring, is not completed."""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from rollstream.schemas.record import Record, Symbol, writable

# An exception's text may hold a whole prompt, which the record carries already.
MAX_MESSAGE_CHARACTERS: Final = 2000


class FailureCode(StrEnum):
    """What went wrong. The values are few, so that programs can compare them and counters can be labeled with them."""

    UNKNOWN = "UNKNOWN"
    """A newer version of this project wrote a code that this one does not know."""
    BAD_PROMPT = "bad_prompt"
    """Failed: a number of the prompt is out of its bounds, or the chat template does not take messages or tools."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """Failed: the prompt leaves no room for an answer in the model's length."""
    UNKNOWN_AGENT = "unknown_agent"
    """Failed: the prompt names an agent that does not exist or cannot be made."""
    BAD_AGENT_OPTIONS = "bad_agent_options"
    """Failed: the agent does not take these options."""
    UNSUPPORTED_SAMPLING = "unsupported_sampling"
    """Failed: no engine samples at this temperature, or a training prompt's sampling (e.g. top_k) changes the
    distribution, so that the logprobs are not the policy's."""
    REFUSED = "refused"
    """Failed: the server of the model refused the request, e.g. it knows no such model or key; its message says why."""
    VERSION_GONE = "version_gone"
    """Failed, in `evaluate`'s own check unresolved: another weight version is loaded or answered than was asked for, or
    the one asked for does not exist."""
    TOO_LARGE = "too_large"
    """Failed: the record is over the size limit of its topic; its turns are left out."""
    NO_ENVIRONMENT = "no_environment"
    """Failed: the prompt names no environment, so no rubric scores it."""
    UNKNOWN_ENVIRONMENT = "unknown_environment"
    """Failed: no environment has the prompt's name, or it does not take the scorer's options."""
    DEADLINE = "deadline"
    """Unresolved: there was no answer within the deadline."""
    ENGINE = "engine"
    """Unresolved: the model call failed in the engine, at every try."""
    TOOL = "tool"
    """Unresolved: a tool's server did not answer, or a call that may have arrived must not be repeated."""
    DIVERGED = "diverged"
    """Unresolved: the agent asked something else than the attempt that it goes on with, at every try."""
    GIVEN_UP = "given_up"
    """Unresolved: the handler raised, or the process ended on this prompt too often."""
    BROKEN_ENVIRONMENT = "broken_environment"
    """Unresolved: the environment's own code raised while it was loaded."""
    BAD_REWARD = "bad_reward"
    """Unresolved: a reward function or the rubric raised, or gave no finite number."""
    TIMEOUT = "timeout"
    """Unresolved: scoring the sample or its batch, or loading its environment, took longer than its bound."""
    CRASH = "crash"
    """Unresolved: the process that scored the sample or loaded its environment died."""


def _cut(message: Any) -> Any:
    return writable(message[:MAX_MESSAGE_CHARACTERS]) if isinstance(message, str) else message


class Failure(Record):
    """Why a sample, or its scoring, is not completed; a message over 2000 characters is cut.

    Example:
        Failure(code=FailureCode.PROMPT_TOO_LONG, message="600 tokens leave no room in the model's 512")
    """

    code: Symbol[FailureCode] = Field(description="What went wrong, for programs")
    message: Annotated[str, BeforeValidator(_cut)] = Field(description="What went wrong exactly, for people")

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"
