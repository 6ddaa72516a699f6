"""What the body of a call says: messages, tools and ids for the record, and what this server refuses by name.

What the model is given are vLLM's token ids. The messages are for people and rubrics, so texts in several parts are
joined, and parts without a text are left out. What does not have a route's shape is left to the route to refuse.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rollstream.schemas.bounds import MAX_ITEMS
from rollstream.schemas.prompt import Message, ToolCall

MAX_CHOICES: Final = 16
"""Of one call, over all its prompts: each is a request in the engine."""
MAX_ID_CHARACTERS: Final = 256
"""Of a session or a person."""

Body = Mapping[str, Any]

_REFUSED: Final = {
    "previous_response_id": "this server keeps no answers: send the whole conversation as input",
    "previous_input_messages": "send the whole conversation as input",
    "background": "this server keeps no answers: leave it out, and stream",
    "use_beam_search": "beams have no logprobs of their own: leave it out",
    "priority": "all clients are served alike: leave it out",
    "cache_salt": "the server sets it: leave it out",
    "request_id": "the server sets it: leave it out",
    "kv_transfer_params": "this server transfers no cache: leave it out",
    "ec_transfer_params": "this server transfers no cache: leave it out",
    "vllm_xargs": "this server takes no extra arguments: leave it out",
    "prompt_logprobs": "a prompt with them takes no part of the cache: leave it out",
    "prompt_embeds": "they have no token ids to record: send text or token ids",
}
"""Fields that no call may set, and what to do instead."""
_NOT_TEXT: Final = ("image", "audio", "video", "file", "document")
_TEXTS: Final = ("text", "thinking", "refusal")


def refused(body: Body) -> str | None:
    """Why this server does not answer a call with this body; None if nothing speaks against it."""
    for name, instead in _REFUSED.items():
        # 0 asks for logprobs too, but for no priority.
        if body.get(name) or (name == "prompt_logprobs" and _asks_logprobs(body, name)):
            return f"{name} is not supported: {instead}"
    if body.get("echo") and _asks_logprobs(body, "logprobs"):
        return "echo with logprobs is not supported: it needs logprobs of the prompt; leave out one of them"
    if (found := _kinds(body) - {""}) and (kind := next((one for one in found if _is_no_text(one)), None)):
        return f"content of the type {kind[:32]!r} is not supported: the model reads text alone"
    return _too_many(body)


def messages_of(route: str, body: Body) -> tuple[Message, ...]:
    """What was asked. Raises `ValueError` for messages that are not of the route's shape."""
    try:
        found = tuple(_READERS[route](body))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("the messages have not the shape of this route: see its reference") from error
    if len(found) > MAX_ITEMS:
        raise ValueError(f"{len(found)} messages, at most {MAX_ITEMS}: send fewer")
    return found


def tools_of(body: Body) -> tuple[str, ...]:
    """The tools, each as JSON in the shape of chat completions. Raises `ValueError` for too many."""
    tools = body.get("tools") or ()
    if not isinstance(tools, Sequence) or len(tools) > MAX_ITEMS:
        raise ValueError(f"tools must be a list of at most {MAX_ITEMS}: send fewer")
    return tuple(json.dumps(_as_chat_tool(tool), sort_keys=True) for tool in tools if isinstance(tool, dict))


def named(body: Body, *names: str) -> str:
    """The first id among fields such as `metadata.session_id`; empty if the body has none."""
    for name in names:
        found: Any = body
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, str) and found:
            return found
    return ""


def _asks_logprobs(body: Body, name: str) -> bool:
    return body.get(name) is not None and body.get(name) is not False


def _kinds(body: Body) -> set[str]:
    """The types of all parts of messages, those in answers of tools too."""
    found: set[str] = set()
    waiting: list[Any] = [body.get("messages"), body.get("input"), body.get("system")]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            found.add(str(one.get("type", "")))
            # Parts without a type say by a field of their own what they are.
            found.update(name for name in one if _is_no_text(name))
            waiting += [one.get("content"), one.get("output")]
    return found


def _is_no_text(kind: str) -> bool:
    return kind.removeprefix("input_").startswith(_NOT_TEXT)


def _too_many(body: Body) -> str | None:
    number, prompts = body.get("n"), body.get("prompt")
    # Routes would read 20.0 and "20" as 20.
    if not isinstance(number, int | None):
        return "n must be a whole number"
    num_prompts = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    num_choices = num_prompts * number if isinstance(number, int) else num_prompts
    if num_choices > MAX_CHOICES:
        return f"n and prompt ask for {num_choices} choices, at most {MAX_CHOICES} in a call: make several calls"
    return None


def _text(content: Any) -> str:
    """The text of a message's content: a text, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = (part if isinstance(part, str) else _text_of_part(part) for part in content)
    return "".join(parts)


def _text_of_part(part: Mapping[str, Any]) -> str:
    return next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), "")


def _chat(body: Body) -> Iterable[Message]:
    for message in body["messages"]:
        calls = message.get("tool_calls") or ()
        yield Message(
            role=message["role"],
            content=_text(message.get("content")),
            tool_calls=tuple(_tool_call(call["id"], call["function"], "arguments") for call in calls),
            tool_call_id=message.get("tool_call_id"),
        )


def _completion(body: Body) -> Iterable[Message]:
    """One message a prompt, also for token ids, so that the numbers agree."""
    prompt = body["prompt"]
    prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    return (Message(role="user", content=one if isinstance(one, str) else "") for one in prompts)


def _responses(body: Body) -> Iterable[Message]:
    if body.get("instructions"):
        yield Message(role="system", content=body["instructions"])
    asked = body["input"]
    if isinstance(asked, str):
        yield Message(role="user", content=asked)
        return
    for one in asked:
        kind = one.get("type", "message")
        if kind == "function_call":
            yield Message(role="assistant", content="", tool_calls=(_tool_call(one["call_id"], one, "arguments"),))
        elif kind == "function_call_output":
            yield Message(role="tool", content=_text(one.get("output")), tool_call_id=one["call_id"])
        elif kind == "message":
            yield Message(role=one["role"], content=_text(one.get("content")))


def _anthropic(body: Body) -> Iterable[Message]:
    if body.get("system"):
        yield Message(role="system", content=_text(body["system"]))
    for message in body["messages"]:
        content = message["content"]
        parts = [] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "tool_result":
                yield Message(role="tool", content=_text(part.get("content")), tool_call_id=part["tool_use_id"])
        calls = tuple(_tool_call(part["id"], part, "input") for part in parts if part["type"] == "tool_use")
        text = _text(content)
        if text or calls or not parts:
            yield Message(role=message["role"], content=text, tool_calls=calls)


def _tool_call(call_id: str, function: Mapping[str, Any], field: str) -> ToolCall:
    arguments = function.get(field) or ""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)
    return ToolCall(call_id=call_id, name=function["name"], arguments=written)


def _as_chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or "name" not in tool:
        return tool
    schema = tool.get("parameters") or tool.get("input_schema") or {}
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": schema}
    return {"type": "function", "function": function}


CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"

_READERS: Final[Mapping[str, Callable[[Body], Iterable[Message]]]] = {
    CHAT: _chat,
    COMPLETIONS: _completion,
    RESPONSES: _responses,
    MESSAGES: _anthropic,
}
