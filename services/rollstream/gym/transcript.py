"""A Responses transcript as chat messages, and its figures: calls, tokens, and what its server did not report.

items: `message`, `reasoning`, `function_call` and `function_call_output`; any other one is kept as it came.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Item = Mapping[str, Any]

_ARRAYS: Final = ("generation_token_ids", "generation_log_probs")


def has_output(row: Item) -> bool:
    """Whether a row has a response with a list of items."""
    response = row.get("response")
    return isinstance(response, dict) and isinstance(response.get("output"), list)


def messages_of(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Chat messages, in order. Calls that follow one another are one message; reasoning goes to the next one."""
    messages: list[dict[str, Any]] = []
    reasoning = ""
    for item in items:
        kind = _kind(item)
        if kind == "reasoning":
            reasoning = "\n".join(filter(None, (reasoning, _texts(item.get("summary")) or _texts(item.get("content")))))
            continue
        last = messages[-1] if messages else {}
        if kind == "function_call" and last.get("tool_calls") and not reasoning:
            last["tool_calls"].append(_call(item))
            continue
        messages.append(_message(kind, item))
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning"], reasoning = reasoning, ""
    if reasoning:
        messages.append({"role": "assistant", "content": "", "reasoning": reasoning})
    return messages


def prompt_messages(asked: Any) -> list[dict[str, Any]]:
    """The input of `responses_create_params`, text or items, as chat messages."""
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else messages_of(asked)


def answer_text(response: Mapping[str, Any]) -> str:
    """The text of the last message; "" without one."""
    texts = [_texts(item.get("content")) for item in response["output"] if _kind(item) == "message"]
    return texts[-1] if texts else ""


def is_cut_off(response: Mapping[str, Any]) -> bool:
    """Whether the model ran out of tokens."""
    details = response.get("incomplete_details")
    return isinstance(details, dict) and details.get("reason") == "max_output_tokens"


def output_tokens(response: Mapping[str, Any]) -> int | None:
    """Sampled tokens of all calls; None if that was not reported."""
    return usage_of(response)["output_tokens"]


def usage_of(response: Mapping[str, Any]) -> dict[str, int | None]:
    """Tokens of all calls: None for what was not reported, which is not 0."""
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return {
        "input_tokens": _count(usage.get("input_tokens")),
        "output_tokens": _count(usage.get("output_tokens")),
        "cached_tokens": _detail(usage, "input_tokens_details", "cached_tokens"),
        "reasoning_tokens": _detail(usage, "output_tokens_details", "reasoning_tokens"),
    }


def num_tool_calls(items: Iterable[Any]) -> int:
    """Calls of tools."""
    return sum(_kind(item) == "function_call" for item in items)


def token_mismatch(items: Sequence[Any]) -> str:
    """Why the token ids of an item are not to be believed; "" if they are, or there are none."""
    for number, item in enumerate(items):
        ids, logprobs = ((item.get(name) if isinstance(item, dict) else None) for name in _ARRAYS)
        if ids is None and logprobs is None:
            continue
        if not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
            counts = [len(one) if isinstance(one, list) else "no list" for one in (ids, logprobs)]
            return f"item {number} has {counts[0]} generation_token_ids and {counts[1]} generation_log_probs"
    return ""


def _kind(item: Any) -> str:
    if not isinstance(item, dict):
        return "unknown"
    # An input message needs no type.
    return str(item.get("type") or ("message" if "role" in item else "unknown"))


def _message(kind: str, item: Any) -> dict[str, Any]:
    if kind == "message":
        return {"role": str(item.get("role", "assistant")), "content": _texts(item.get("content"))}
    if kind == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": [_call(item)]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _texts(item.get("output"))}
    return {"role": "unknown", "content": None, "item": item}


def _call(item: Item) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _texts(content: Any) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _detail(usage: Item, group: str, name: str) -> int | None:
    details = usage.get(group)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None
