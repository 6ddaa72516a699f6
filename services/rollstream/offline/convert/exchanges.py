"""Rollouts as exchanges: a prompt and its answer as the records' messages, which `rollstream sft` learns from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rollstream.offline.convert.conversations import (
    Conversation,
    Tally,
    refuse_unusable,
    usable,
)
from rollstream.rows.conversation import records_of, tools_of
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.prompt import Message

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
    return records_of(conversation.prompt), records_of(conversation.completion), tools_of(conversation.tools)
