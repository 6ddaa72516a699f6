"""Rollouts as exchanges: a prompt and its answer as the records' messages, which `rollstream sft` learns from."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from rollstream.collect.files.rows import open_rows
from rollstream.collect.sft.conversations import (
    ChatMessage,
    Conversation,
    Tally,
    refuse_unusable,
    usable,
)
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.prompt import Message, ToolCall

Exchange = tuple[tuple[Message, ...], tuple[Message, ...], tuple[str, ...]]
"""Messages of the prompt, messages of the answer, tools as JSON texts."""

# What of an answer is not in its text: a chat template decides how the model would have to write it.
_NOT_TEXT: Final = ("tool_calls", "reasoning", "reasoning_content")


class RolloutExchanges:
    """The good exchanges of a file of rollouts. It is read again for each pass, as a stream."""

    def __init__(self, path: Path, min_reward: float | None) -> None:
        """Reads the file once. Raises `ConfigurationError` if it has no row to learn from, or can't be read."""
        self._source = open_rows(path)
        self._min_reward = min_reward
        self.tally = Tally()
        for _ in self._read(self.tally):
            pass
        refuse_unusable(path, self.tally)

    def __iter__(self) -> Iterator[Exchange]:
        """One pass, in the order of the file."""
        return self._read(Tally())

    def _read(self, tally: Tally) -> Iterator[Exchange]:
        return usable(self._source, self._min_reward, tally, exchange_of)


def exchange_of(conversation: Conversation) -> Exchange:
    """The messages as records. Raises `UnusableRowError` where an answer is more than its text."""
    if any(message.get(part) for message in conversation.completion for part in _NOT_TEXT):
        raise UnusableRowError("its answer holds tool calls or reasoning apart from its text")
    prompt, completion = _records(conversation.prompt), _records(conversation.completion)
    return prompt, completion, _tools(conversation.tools)


def _records(messages: Iterable[ChatMessage]) -> tuple[Message, ...]:
    try:
        return tuple(
            Message(
                role=message["role"],
                content=message["content"],
                tool_calls=tuple(_tool_call(call) for call in message.get("tool_calls", ())),
                tool_call_id=message.get("tool_call_id"),
            )
            for message in messages
        )
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise UnusableRowError("a message is in no known form") from error


def _tool_call(call: Any) -> ToolCall:
    function = call.get("function", call)
    arguments = function["arguments"]
    return ToolCall(
        call_id=call["id"],
        name=function["name"],
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    )


def _tools(tools: Any) -> tuple[str, ...]:
    try:
        found = json.loads(tools) if isinstance(tools, str) else tools or []
    except (ValueError, RecursionError) as error:
        raise UnusableRowError("its tools are no JSON") from error
    if not isinstance(found, list):
        raise UnusableRowError("its tools are no list")
    return tuple(tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False) for tool in found)
