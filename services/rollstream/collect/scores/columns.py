"""Finds in a rollout's row what a reward needs: the answer, prompt, data source, ground truth. Pure.

Columns as `generate-rollouts` writes them (source document 001: `prompt`, `response`, `original_*`), with what verl's
data has inside them, and as the document's snippet calls them. Nested values may be objects or JSON text. A column
without the prefix `original_` counts where there is none with it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message

Row = Mapping[str, Any]

ORIGINAL: Final = "original_"
SCORE_COLUMNS: Final = ("reward", "reward_normalized", "passed", "reward_failure")
"""What `analyze-rewards` writes beside `reward_<function>`."""

ANSWER_COLUMNS: Final = ("completion", "response")
"""Where the answer is: text, or messages as source document 000 has them. The first that is not null counts."""

_OWN: Final = frozenset(
    {
        "prompt", *ANSWER_COLUMNS, "sample_idx", "data_idx", "temperature", "top_p", "max_tokens", "status", "failure",
        *SCORE_COLUMNS,
    }
)  # fmt: skip
_ANSWERED: Final = ("completed", "")
_MAX_SHOWN: Final = 60


def original(fields: Row, name: str) -> Any:
    """The value of `original_<name>`, else of `<name>`; None if there is neither. Nulls count as absent."""
    value = fields.get(ORIGINAL + name)
    return value if value is not None else fields.get(name)


def data_source_of(fields: Row) -> str:
    """The name of the data source; empty if the row has none."""
    value = original(fields, "data_source")
    return "" if value is None else text_of(value)


def ground_truth_of(fields: Row) -> str | None:
    """What the answer is compared with, as text; None if the row has nothing like it.

    In this order: `reward_model["ground_truth"]` (verl), `ground_truth` (the document's snippet), `reference_answer`,
    `extra_info["ground_truth"]`, `answer`, `extra_info["answer"]`. Of an answer in gsm8k's own form, a solution and its
    result after "#### ", the result counts.
    """
    extra = object_of(original(fields, "extra_info"))
    named = (
        object_of(original(fields, "reward_model")).get("ground_truth"),
        original(fields, "ground_truth"),
        original(fields, "reference_answer"),
        extra.get("ground_truth"),
    )
    for value in named:
        if value is not None:
            return text_of(value)
    for value in (original(fields, "answer"), extra.get("answer")):
        if value is not None:
            return text_of(value).rpartition("#### ")[2]
    return None


def turns_of(fields: Row) -> tuple[str, ...]:
    """The text of each turn of the assistant, at least one; the last is the response.

    Raises `RewardError` (`reason: what exactly`) if there is none that could be scored.
    """
    name, response = _answer(fields)
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


def _answer(fields: Row) -> tuple[str, Any]:
    """The name of the answer's column, and its value; None if all are absent or null."""
    return next(((name, fields[name]) for name in ANSWER_COLUMNS if fields.get(name) is not None), ("response", None))


def _assistant_texts(messages: Any) -> tuple[str, ...]:
    """Empty if there are none, or if one's content is no text."""
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        return ()
    # Of a message that only calls tools the content is null.
    contents = [one.get("content") for one in messages if one.get("role") == "assistant"]
    texts = ["" if content is None else content for content in contents]
    return tuple(texts) if all(isinstance(text, str) for text in texts) else ()


def messages_of(fields: Row) -> tuple[Message, ...]:
    """The prompt as messages: a text is one of the user, a list stays as it is. Raises `RewardError`."""
    prompt = fields.get("prompt")
    if prompt is None:
        return ()
    if isinstance(prompt, str):
        return (Message(role="user", content=prompt),)
    try:
        return tuple(_message(part) for part in prompt)
    except (KeyError, TypeError, ValidationError):
        raise RewardError(
            f"bad_prompt: `prompt` must be text or a list of messages with role and content, got {shown(prompt)}"
        ) from None


def _message(part: Any) -> Message:
    role, content = part["role"], part["content"]
    # Parts of a message, or none with tool calls: only text is needed here.
    return Message(role=role, content="" if content is None else text_of(content))


def metadata_of(fields: Row) -> dict[str, str]:
    """What reward functions may need beside the answer: nested values as JSON text, nulls left out.

    The original columns without their prefix, every other column that is not ours, and the entries of `extra_info`; of
    the same name the first of these counts.
    """
    plain = {name: value for name, value in fields.items() if not _is_own(name)}
    others = {name: value for name, value in plain.items() if not name.startswith(ORIGINAL)}
    named = {name.removeprefix(ORIGINAL): value for name, value in plain.items() if name.startswith(ORIGINAL)}
    extra = object_of(original(fields, "extra_info"))
    return {name: text_of(value) for name, value in {**extra, **others, **named}.items() if value is not None}


def _is_own(name: str) -> bool:
    return name in _OWN or (name.startswith("reward_") and name != "reward_model")


def object_of(value: Any) -> Row:
    """`value` if it is an object or the JSON text of one, else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def text_of(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def shown(value: Any) -> str:
    """`value` for an error message."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
