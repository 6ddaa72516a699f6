"""Conversations to imitate, from rows of rollouts: those that completed, were rewarded enough, and hold plain messages.

Every row that is left out is counted with its reason, and the first places are kept. `rollstream sft` takes them as
exchanges; Prime-RL's SFT as rows with `prompt` and `completion`, or with `messages`, which it prefers where a row has
both.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from rollstream.offline.options import SftExportOptions
from rollstream.rows.conversation import ChatMessage, chat_of, exchange_in, records_of, tools_in, tools_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, RowSource
from rollstream.rows.write import kind_of, write_rows
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.prompt import Message

T = TypeVar("T")
Fields = Mapping[str, Any]

_PLACES: Final = 5

Exchange = tuple[tuple[Message, ...], tuple[Message, ...], tuple[str, ...]]
"""Messages of the prompt, messages of the answer, tools as JSON texts."""

# What of an answer is not in its text: a chat template decides how the model would have to write it.
_NOT_TEXT: Final = ("tool_calls", "reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt and the answer to imitate, as chat messages without nulls. `tools`: function schemas, if there are."""

    prompt: tuple[ChatMessage, ...]
    completion: tuple[ChatMessage, ...]
    tools: Any = None


@dataclass(slots=True)
class RowCounts:
    """How many rows were read and used, and why others were left out; `places`: where the first of each reason are."""

    num_rows: int = 0
    num_used: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, reason: str, where: str) -> None:
        """Count a row that is not used."""
        self.left_out[reason] += 1
        places = self.places.setdefault(reason, [])
        if len(places) < _PLACES:
            places.append(where)

    def lines(self) -> list[str]:
        """What was used, then one line for each reason."""
        found = [f"{self.num_used} of {self.num_rows} rows are used"]
        for reason, count in self.left_out.most_common():
            places = ", ".join(self.places[reason])
            found.append(f"{count} left out: {reason} ({places}{', …' * (count > len(self.places[reason]))})")
        return found


def usable(
    source: RowSource, min_reward: float | None, tally: RowCounts, form: Callable[[Conversation], T]
) -> Iterator[T]:
    """The usable rows of a file, as a stream, in the `form` that it wants; it may raise `UnusableRowError` too."""
    for row in source:
        tally.num_rows += 1
        try:
            if isinstance(row, BadRow):
                raise UnusableRowError("it can't be read")
            found = form(conversation_of(row.fields, min_reward))
        except UnusableRowError as error:
            tally.leave_out(error.reason, row.where)
            continue
        tally.num_used += 1
        yield found


def refuse_unusable(path: Path, tally: RowCounts) -> None:
    """Raise `ConfigurationError` if no row was used."""
    if tally.num_used:
        return
    reasons = "; ".join(tally.lines()[1:])
    raise ConfigurationError(
        f"{path} has no row to learn from, of {tally.num_rows}: {reasons}; lower --min-reward, or name other rollouts"
    )


def conversation_of(fields: Fields, min_reward: float | None) -> Conversation:
    """The conversation of a row. Raises `UnusableRowError`; `min_reward` None takes every reward, but needs one."""
    _refuse_unfinished(fields)
    _refuse_reward(fields.get("reward"), min_reward)
    prompt, completion = _messages(fields)
    if not any(message["role"] == "assistant" for message in completion):
        raise UnusableRowError("it has no answer of an assistant")
    return Conversation(prompt=prompt, completion=completion, tools=tools_in(fields))


def _refuse_unfinished(fields: Fields) -> None:
    # `error` is verifiers' word, `failure` is ours.
    if fields.get("status") not in (None, "completed") or fields.get("error") or fields.get("failure"):
        raise UnusableRowError("it failed or is unresolved")
    if fields.get("is_truncated") is True or fields.get("finish_reason") == "length":
        raise UnusableRowError("its answer was cut off")


def _refuse_reward(reward: Any, min_reward: float | None) -> None:
    if reward is None:
        raise UnusableRowError("it has no reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise UnusableRowError("its reward is not a number")
    if min_reward is not None and not reward >= min_reward:
        raise UnusableRowError(f"its reward is below {min_reward:g}")


def _messages(fields: Fields) -> tuple[tuple[ChatMessage, ...], tuple[ChatMessage, ...]]:
    asked, answer = exchange_in(fields)
    if asked is None:
        raise UnusableRowError("it has neither `prompt` nor `messages`")
    if answer is None:
        raise UnusableRowError("it has neither `completion` nor `response`")
    return chat_of(asked, role="user") if asked else (), chat_of(answer, role="assistant")


class RolloutExchanges:
    """The good exchanges of a file of rollouts. It is read again for each pass, as a stream."""

    def __init__(self, path: Path, min_reward: float | None) -> None:
        """Reads the file once. Raises `ConfigurationError` if it has no row to learn from, or can't be read."""
        self._source = open_rows(path)
        self._min_reward = min_reward
        self.tally = RowCounts()
        for _ in self._read(self.tally):
            pass
        refuse_unusable(path, self.tally)

    def __iter__(self) -> Iterator[Exchange]:
        """One pass, in the order of the file."""
        return self._read(RowCounts())

    def _read(self, tally: RowCounts) -> Iterator[Exchange]:
        return usable(self._source, self._min_reward, tally, exchange_of)


def exchange_of(conversation: Conversation) -> Exchange:
    """The messages as records. Raises `UnusableRowError` where an answer is more than its text."""
    if any(message.get(part) for message in conversation.completion for part in _NOT_TEXT):
        raise UnusableRowError("its answer holds tool calls or reasoning apart from its text")
    return records_of(conversation.prompt), records_of(conversation.completion), tools_of(conversation.tools)


def export_for_sft(options: SftExportOptions) -> RowCounts:
    """Write the usable rows of the rollouts to the output; nothing is written if there are none.

    Raises `ConfigurationError` then, and for files that can't be read or written.
    """
    # No directory of `save_to_disk`: Prime-RL opens its data by `load_dataset`, which takes none.
    kind = kind_of(options.output, may_be_directory=False)
    tally, source = RowCounts(), open_rows(options.rollouts)
    with write_rows(options.output, kind) as writer:
        for fields in usable(source, options.min_reward, tally, lambda found: _row(found, options.layout)):
            writer.write(fields)
        refuse_unusable(options.rollouts, tally)
    return tally


def _row(conversation: Conversation, layout: str) -> dict[str, Any]:
    prompt, completion = list(conversation.prompt), list(conversation.completion)
    fields: dict[str, Any] = (
        {"messages": prompt + completion} if layout == "messages" else {"prompt": prompt, "completion": completion}
    )
    if conversation.tools:
        # As JSON text: each row has functions of its own, which no column of a file can hold.
        fields["tools"] = (
            conversation.tools
            if isinstance(conversation.tools, str)
            else json.dumps(conversation.tools, ensure_ascii=False)
        )
    return fields
