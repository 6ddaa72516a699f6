"""`rollstream gym convert`: rows of verl, GSM8K, verifiers and the like as rows that Gym's agents are asked.

What is asked and what an answer is compared with is read as all our commands read it (`rows/conversation.py`). Every
other column travels on under its own name, for the verifier.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rollstream.gym.names import AGENT, PARAMS
from rollstream.gym.options import ConvertOptions
from rollstream.process.terminal import Say, shown
from rollstream.rows.conversation import (
    PROMPT,
    TOOLS,
    asked_of,
    messages_of,
    object_of,
    reference_of,
    tools_in,
    tools_of,
)
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.prompt import Message
from rollstream.tools.gym_form import items_of

_QUESTION: Final = "question"
_EXPECTED: Final = "expected_answer"
_SHOWN: Final = 10


def convert_rows(options: ConvertOptions, say: Say) -> None:
    """Write the input rows, and say which rows were left out. Raises `ConfigurationError` if none can be asked."""
    rows, bad, num_rows, num_bad = open_rows(options.input_fpath), list[str](), 0, 0
    with write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for made in _converted(rows, options.agent_name):
            if isinstance(made, str):
                num_bad += 1
                if num_bad <= _SHOWN:
                    bad.append(made)
                continue
            writer.write(made)
            num_rows += 1
        if not num_rows:
            raise ConfigurationError(f"none of {num_bad} rows of {rows.name} can be asked: {'; '.join(bad)}")
    say(f"{options.output_jsonl_fpath}: {num_rows} rows, {num_bad} left out")
    for line in bad:
        say(f"   {line}")


def _converted(rows: RowSource, agent: str | None) -> Iterator[dict[str, Any] | str]:
    """Rows, or why there is none."""
    for row in rows:
        if isinstance(row, BadRow):
            yield f"{row.where}: {row.why}"
            continue
        try:
            yield input_row(row, agent)
        except UnusableRowError as error:
            yield f"{row.where}: {error}"


def input_row(row: ReadRow, agent: str | None) -> dict[str, Any]:
    """The input row of a row. Raises `UnusableRowError` if it asks nothing."""
    fields = row.fields
    # GSM8K's column.
    key = _QUESTION if not asked_of(fields)[0] and fields.get(_QUESTION) else PROMPT
    params = {**object_of(fields.get(PARAMS)), "input": _input(messages_of(fields, key))}
    tools = [_tool(text) for text in tools_of(tools_in(fields))]
    if tools:
        params["tools"] = tools
    left_out = {key, "messages", *TOOLS, PARAMS}
    others = {name: value for name, value in fields.items() if name not in left_out and value is not None}
    reference = reference_of(fields)
    expected = {} if reference is None else {_EXPECTED: reference}
    return {PARAMS: params, **others, **expected, **({} if agent is None else {AGENT: {"name": agent}})}


def _input(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The Responses API knows messages of chats; calls of tools and their answers are items of their own there."""
    found = list[dict[str, Any]]()
    for message in messages:
        chat = message.model_dump(exclude_defaults=True)
        found += items_of([chat]) if message.tool_calls or message.role == "tool" else [chat]
    return found


def _tool(text: str) -> dict[str, Any]:
    """A chat tool, whose schema lies under `function`, as Responses has it: flat."""
    tool = object_of(text)
    if not tool:
        raise UnusableRowError("a tool is no object", shown(text))
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else dict(tool)
