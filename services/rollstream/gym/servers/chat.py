"""A call of the Responses API as a chat completion, and its answer as a response."""

import time
from collections.abc import Mapping
from typing import Any, Final

from rollstream.engines.http.answers import logprobs_of, token_ids_of
from rollstream.gym.servers.answers import input_of, items_of, refused
from rollstream.gym.transcript import messages_of
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import EngineError

_SAME: Final = ("temperature", "top_p", "seed", "parallel_tool_calls")
_MADE: Final = ("input", "instructions", "max_output_tokens", "tools", "tool_choice", "model", "stream")
_WITHOUT_EFFECT: Final = ("metadata", "store", "user", "include", "truncation", "service_tier", "background")
WITH_TOKENS: Final = {"logprobs": True, "return_token_ids": True}
"""What vLLM is asked besides, so that an answer has its token ids."""
_KNOWN: Final = frozenset((*_SAME, *_MADE, *_WITHOUT_EFFECT))


def chat_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat. What is null is left out. Raises `RefusedRequestError` for fields that chats lack."""
    strange = sorted(name for name, value in asked.items() if value is not None and name not in _KNOWN)
    if strange:
        raise refused(f"vllm_model can't pass on {', '.join(strange)[:500]}: leave it out, or take openai_model")
    messages = [_said(message) for message in messages_of(input_of(asked))]
    if asked.get("instructions"):
        messages.insert(0, {"role": "system", "content": asked["instructions"]})
    chat: dict[str, Any] = {name: asked[name] for name in _SAME if asked.get(name) is not None}
    if asked.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = asked["max_output_tokens"]
    if tools := items_of(asked, "tools"):
        chat["tools"] = [_tool(tool) for tool in tools]
        if asked.get("tool_choice") is not None:
            chat["tool_choice"] = _choice(asked["tool_choice"])
    return {**chat, "messages": messages}


def response_of_chat(asked: Mapping[str, Any], chat: Mapping[str, Any], *, has_tokens: bool = False) -> dict[str, Any]:
    """The response that a chat's answer is. Raises `EngineError` for one without a message, or without its tokens.

    `has_tokens`: the chat was asked `WITH_TOKENS`. They lie on the last item, under Gym's names.
    """
    try:
        choice = chat["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        identity, items = str(chat.get("id", "")), _items(message)
        if has_tokens:
            items[-1] |= _tokens(chat["prompt_token_ids"], choice["token_ids"], choice["logprobs"]["content"])
    except (LookupError, TypeError, AttributeError, EngineError) as error:
        raise EngineError(
            f"the model's API gave a chat completion without its message or its tokens: {error!r}"
        ) from error
    is_cut = reason == "length"
    return {
        "id": identity,
        "object": "response",
        "created_at": float(chat.get("created") or time.time()),
        "model": chat.get("model"),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "output": items,
        "tools": asked.get("tools") or [],
        "tool_choice": asked.get("tool_choice") or "auto",
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "usage": _usage(chat.get("usage")),
    }


def _said(message: dict[str, Any]) -> dict[str, Any]:
    """A message as chats have it: what it thought is `reasoning_content`."""
    rest = {name: value for name, value in message.items() if name != "reasoning"}
    return {**rest, "reasoning_content": message["reasoning"]} if message.get("reasoning") else rest


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        items.append({"type": "reasoning", "id": "", "summary": [{"type": "summary_text", "text": thought}]})
    calls = message.get("tool_calls") or []
    if message.get("content") or not calls:
        text: dict[str, Any] = {"type": "output_text", "text": message.get("content") or "", "annotations": []}
        said = {"type": "message", "id": "", "role": "assistant", "status": "completed", "content": [text]}
        items.append(said)
    for call in calls:
        function = call["function"]
        made = {"call_id": call["id"], "name": function["name"], "arguments": function["arguments"]}
        items.append({"type": "function_call", "id": call["id"], "status": "completed", **made})
    return items


def _tokens(prompt: Any, sampled: Any, logprobs: Any) -> dict[str, list[Any]]:
    """Raises `EngineError`, as for every server's token ids and logprobs."""
    found = [one["logprob"] for one in logprobs]
    token_ids_of(prompt, MAX_SAMPLE_TOKENS)
    logprobs_of(found, len(token_ids_of(sampled, MAX_SAMPLE_TOKENS)))
    return {"prompt_token_ids": prompt, "generation_token_ids": sampled, "generation_log_probs": found}


def _tool(tool: Any) -> Any:
    """Chats have the function in a field of its own."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice:
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _usage(usage: Any) -> dict[str, Any] | None:
    """Tokens, under the names of responses; a figure that the chat lacks is lacking here too."""
    if not isinstance(usage, dict):
        return None
    found: dict[str, Any] = {
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }
    for name, other, detail in (
        ("input_tokens_details", "prompt_tokens_details", "cached_tokens"),
        ("output_tokens_details", "completion_tokens_details", "reasoning_tokens"),
    ):
        if isinstance(usage.get(other), dict) and usage[other].get(detail) is not None:
            found[name] = {detail: usage[other][detail]}
    return found
