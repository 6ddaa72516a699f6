"""Makes a prompt's row from the fields of a file's row, or says what is wrong with them. Pure.

`prompt` (text) or `messages` ([{role, content}, ...]); `reference_answer` or `answer`; `id` (else the row's number);
`tools` (a list of function schemas); `metadata`. Any other field travels as metadata, untouched if it is text, else
as JSON.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message

_OWN: Final = frozenset({"prompt", "messages", "reference_answer", "answer", "id", "tools", "metadata"})


def row_from(fields: Any, *, dataset: str, row: int, where: str) -> PromptRow:
    """The row of `fields`; raises `ConfigurationError` that begins with `where`. A null counts as absent."""
    if not isinstance(fields, Mapping):
        raise ConfigurationError(f"{where}: expected an object with `prompt` or `messages`, got {_short(fields)}")
    given = {name: value for name, value in fields.items() if value is not None}
    return PromptRow(
        prompt_id=f"{dataset}/{given.get('id', row)}",
        row=row,
        messages=_messages(given, where),
        reference_answer=_answer(given),
        tools=tuple(_text(tool) for tool in given.get("tools", ())),
        metadata=_metadata(given, where),
    )


def _messages(given: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    if ("prompt" in given) == ("messages" in given):
        raise ConfigurationError(f"{where}: needs either `prompt` or `messages`, has {sorted(given)}")
    if "prompt" in given:
        if not isinstance(given["prompt"], str):
            raise ConfigurationError(f"{where}: `prompt` must be text, got {_short(given['prompt'])}")
        return (Message(role="user", content=given["prompt"]),)
    found = given["messages"]
    if not isinstance(found, list) or not found:
        raise ConfigurationError(f"{where}: `messages` must be a list with at least one message, got {_short(found)}")
    try:
        return tuple(Message.model_validate(_without_nulls(message)) for message in found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where}: a message's {place or 'form'}: {first['msg']}") from error


def _without_nulls(message: Any) -> Any:
    # Parquet gives every struct of a column all fields.
    return {k: v for k, v in message.items() if v is not None} if isinstance(message, Mapping) else message


def _answer(given: Mapping[str, Any]) -> str | None:
    answer = given.get("reference_answer", given.get("answer"))
    return None if answer is None else _text(answer)


def _metadata(given: Mapping[str, Any], where: str) -> dict[str, str]:
    named = given.get("metadata", {})
    if not isinstance(named, Mapping):
        raise ConfigurationError(f"{where}: `metadata` must be an object, got {_short(named)}")
    others = {name: value for name, value in given.items() if name not in _OWN}
    return {str(name): _text(value) for name, value in {**others, **named}.items() if value is not None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
