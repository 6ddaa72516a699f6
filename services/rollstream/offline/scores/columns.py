"""Finds in a rollout's row what a reward needs beyond what every command reads in it. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from rollstream.process.terminal import shown
from rollstream.rows.conversation import ANSWERS, PROMPT, Row, answer_of, asked_of, messages_of, original
from rollstream.schemas.errors import RewardError, UnusableRowError
from rollstream.schemas.prompt import Message
from rollstream.schemas.values import text_of

SCORE_COLUMNS: Final = ("reward", "reward_normalized", "passed", "reward_failure")
"""What `analyze-rewards` writes beside `reward_<function>`."""

_OWN: Final = frozenset(
    {
        PROMPT, *ANSWERS, "sample_idx", "data_idx", "temperature", "top_p", "max_tokens", "status", "failure",
        "finish_reason", *SCORE_COLUMNS,
    }
)  # fmt: skip
_ANSWERED: Final = ("completed", "")


def data_source_of(fields: Row) -> str:
    """The name of the data source; empty if the row has none."""
    value = original(fields, "data_source")
    return "" if value is None else text_of(value)


def turns_of(fields: Row) -> tuple[str, ...]:
    """The text of each turn of the assistant, at least one; the last is the response.

    Raises `RewardError` (`reason: what exactly`) if there is none that could be scored.
    """
    name, response = answer_of(fields)
    status = fields.get("status")
    told = fields.get("failure")
    if (status is not None and status not in _ANSWERED) or (response is None and told):
        why = f": {text_of(told)}" if told else ""
        raise RewardError(f"not_completed: the rollout is {text_of(status or 'failed')}{why}")
    if response is None:
        raise RewardError("no_response: the row has no response")
    turns = (response,) if isinstance(response, str) else _assistant_texts(response)
    if not turns:
        raise RewardError(f"bad_response: `{name}` must be text, or messages of the assistant, got {shown(response)}")
    if not turns[-1] and status is None:
        raise RewardError(
            "empty_response: the response is empty and the row has no `status`: some programs write that for a failed "
            "request; add `status` = completed where the model really answered nothing"
        )
    return turns


def _assistant_texts(messages: Any) -> tuple[str, ...]:
    """Empty if there are none, or if one's content is no text."""
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        return ()
    # Of a message that only calls tools the content is null.
    contents = [one.get("content") for one in messages if one.get("role") == "assistant"]
    texts = ["" if content is None else content for content in contents]
    return tuple(texts) if all(isinstance(text, str) for text in texts) else ()


def is_ours(name: str) -> bool:
    """Whether a column is one that our commands write beside the tasks' own."""
    return name in _OWN or (name.startswith("reward_") and name != "reward_model")


def prompt_of(fields: Row) -> tuple[Message, ...]:
    """The prompt as messages, none if the row has no prompt. Raises `RewardError`."""
    try:
        return messages_of(fields) if asked_of(fields)[0] else ()
    except UnusableRowError as error:
        raise RewardError(f"bad_prompt: {error}") from error
