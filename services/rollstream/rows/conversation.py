"""What a row says: what is asked, what was answered, and what the answer is compared with. The only reading of a row.

`README.md` beside it states the order of the columns. Pure.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from rollstream.process.terminal import shown
from rollstream.rows.plain import without_nulls
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.prompt import Message
from rollstream.schemas.values import text_of

Row = Mapping[str, Any]
ChatMessage = dict[str, Any]

PROMPT: Final = "prompt"
"""What is asked, unless a person names another column."""
REFERENCE: Final = "reference_answer"
"""Our own name of what an answer is compared with: what we write, and what comes first."""
ANSWERS: Final = ("completion", "response")
"""Where the answer is: text, or messages. The first that is not null counts."""
ORIGINAL: Final = "original_"
"""Before the name of a column of the tasks, in rollouts."""
CARRIED: Final = frozenset({PROMPT, "messages", REFERENCE, "answer", "tools"})
"""Columns that a record of a prompt holds in fields of its own."""

_ASKED: Final = ((PROMPT,), ("messages",), ("responses_create_params", "input"))
ASKED_COLUMNS: Final = frozenset(path[0] for path in _ASKED)
"""One of these a file needs whose rows are asked."""
_REFERENCES: Final = (
    (REFERENCE,),
    ("reward_model", "ground_truth"),
    ("ground_truth",),
    ("extra_info", "ground_truth"),
    ("expected_answer",),
    ("answer",),
    ("extra_info", "answer"),
)
_SOLUTION: Final = "answer"
"""May hold a whole solution with its result at the end, as GSM8K has it."""
_RESULT: Final = "#### "
TOOLS: Final = ("tools", "tool_defs")
"""Columns of tools."""
_TOOLS: Final = (*((name,) for name in TOOLS), ("responses_create_params", "tools"))
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")


def asked_of(row: Row, key: str = PROMPT) -> tuple[str, Any]:
    """The column that asks, and its value; an empty name and None if there is none. `key`: what a person typed."""
    for path in _ASKED if key == PROMPT else ((key,),):
        value = _value(row, path, row.get(path[0]))
        if not _is_absent(value):
            return ".".join(path), value
    return "", None


def messages_of(row: Row, key: str = PROMPT) -> tuple[Message, ...]:
    """What is asked: a text is one message of the user. Raises `UnusableRowError`, if there is nothing too."""
    name, value = asked_of(row, key)
    if not name:
        names = "neither `prompt` nor `messages`" if key == PROMPT else f"no column {key!r}"
        raise UnusableRowError(f"it has {names}, or nothing in it", f"its columns are {shown(sorted(row))}")
    return records_of(chat_of(value, role="user"))


def exchange_in(row: Row) -> tuple[Any, Any]:
    """What is asked and what was answered, as the row has them: text, messages, or None.

    Without a `prompt`, `messages` may hold both: what was answered begins with the assistant's first message.
    """
    name, asked = asked_of(row)
    if name == "messages" and isinstance(asked, list):
        places = (place for place, one in enumerate(asked) if object_of(one).get("role") == "assistant")
        first = next(places, None)
        if first is not None:
            return asked[:first], asked[first:]
    return asked, answer_of(row)[1]


def demonstration_in(row: Row) -> tuple[Any, Any]:
    """The same of a row that shows how to answer: where nothing is asked or answered, `question` and `answer` are.

    So GSM8K has it, and its `answer` is the whole solution, not the reference at its end.
    """
    asked, answered = exchange_in(row)
    return row.get("question") if asked is None else asked, row.get("answer") if answered is None else answered


def answer_of(row: Row) -> tuple[str, Any]:
    """The name of the answer's column, and its value; None if all are absent or null."""
    return next(((name, row[name]) for name in ANSWERS if row.get(name) is not None), (ANSWERS[-1], None))


def reference_of(row: Row) -> str | None:
    """What the answer is compared with, as text; None if the row has nothing like it, or only blanks."""
    for path in _REFERENCES:
        value = _value(row, path, original(row, path[0]))
        if not _is_absent(value):
            text = text_of(value)
            text = _result(text) if path[-1] == _SOLUTION else text
            if text.strip():
                return text
    return None


def metadata_of(row: Row, is_ours: Callable[[str], bool]) -> dict[str, str]:
    """What reward functions may need beside the answer: other values as JSON text, nulls left out.

    The entries of `metadata`, the tasks' columns without their prefix, every other column that is not ours, and the
    entries of `extra_info`; of the same name the first of these counts.
    """
    entries = object_of(original(row, "metadata"))
    plain = {
        name: value
        for name, value in row.items()
        if not is_ours(name) and not (entries and name.removeprefix(ORIGINAL) == "metadata")
    }
    named = {name.removeprefix(ORIGINAL): value for name, value in plain.items() if name.startswith(ORIGINAL)}
    others = {name: value for name, value in plain.items() if not name.startswith(ORIGINAL)}
    found = {**object_of(original(row, "extra_info")), **others, **named, **entries}
    return {str(name): text_of(value) for name, value in found.items() if value is not None}


def tools_in(row: Row) -> Any:
    """The tools as the row has them; None if it has none."""
    return next((value for path in _TOOLS if (value := _value(row, path, original(row, path[0])))), None)


def tools_of(tools: Any) -> tuple[str, ...]:
    """Tools, a list or its JSON text, as a JSON text each. Raises `UnusableRowError`."""
    try:
        found = json.loads(tools) if isinstance(tools, str) else tools or []
    except (ValueError, RecursionError) as error:
        raise UnusableRowError("its tools are no JSON") from error
    if not isinstance(found, list):
        raise UnusableRowError("its tools are no list")
    return tuple(map(text_of, found))


def chat_of(value: Any, *, role: str) -> tuple[ChatMessage, ...]:
    """Messages without nulls, each with its content as text; a text is one of `role`. Raises `UnusableRowError`."""
    messages = plain_chat(value, role)
    if messages is None:
        raise UnusableRowError("its messages are neither text nor a list of messages", shown(value))
    return tuple(map(_message, messages))


def plain_chat(value: Any, role: str = "user") -> list[Any] | None:
    """The same without looking at the messages; None if there are none."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return without_nulls(value) if isinstance(value, list) and value else None


def records_of(messages: Iterable[ChatMessage]) -> tuple[Message, ...]:
    """What `chat_of` gives as records, which have no place for other keys. Raises `UnusableRowError`."""
    try:
        return tuple(map(_record, messages))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UnusableRowError("a message is in no known form", f"its {place}: {first['msg']}") from error


def original(row: Row, name: str) -> Any:
    """The value of `original_<name>`, else of `<name>`; None if there is neither. Blanks count as absent."""
    value = row.get(ORIGINAL + name)
    return row.get(name) if _is_absent(value) else value


def object_of(value: Any) -> Row:
    """`value` if it is an object or the JSON text of one, else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _value(row: Row, path: tuple[str, ...], column: Any) -> Any:
    return object_of(column).get(path[1]) if len(path) > 1 else column


def _is_absent(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _result(solution: str) -> str:
    """What follows the last mark, if it is one line; a solution without a result is a reference itself."""
    _, mark, result = solution.rpartition(_RESULT)
    return solution if not mark or "\n" in result.strip() else result.strip()


def _message(message: Any) -> ChatMessage:
    # Its role may be of any type, also of one that no set can look for.
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise UnusableRowError("a message has no role that is known", shown(message))
    content = message.get("content")
    if content is None and isinstance(message.get("tool_calls"), list):
        # OpenAI's is null where a message only calls tools.
        content = ""
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise UnusableRowError("a message's content is not text", shown(content))
    return {**message, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)


def _record(chat: ChatMessage) -> Message:
    fields = {name: chat[name] for name in ("role", "content", "tool_calls", "tool_call_id") if name in chat}
    if isinstance(fields.get("tool_calls"), list):
        fields["tool_calls"] = [_flat(call) for call in fields["tool_calls"]]
    return Message.model_validate(fields)


def _flat(call: Any) -> Any:
    """A tool call without OpenAI's object `function` within it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"call_id": call.get("id"), "name": function.get("name"), "arguments": text}
