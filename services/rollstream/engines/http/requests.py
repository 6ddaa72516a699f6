"""The bodies of requests: chat and text completions, from messages or from token ids."""

import json
from collections.abc import Sequence
from typing import Any, Final

from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.protocol import GenerationRequest
from rollstream.engines.tokenizer import as_chat, control_token_in
from rollstream.schemas.prompt import Message

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
# Said outright: a server's own defaults, of the model's generation_config.json, would change the distribution.
_NOTHING_ELSE: Final = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def refuse_unfit(messages: Sequence[Message], tools: Sequence[str], settings: HttpSettings) -> None:
    """Raise `ValueError` for messages and tools that the route can't take as they are."""
    if (found := control_token_in(messages, tools)) is not None:
        raise ValueError(
            f"{found!r} is a control token for many models, and a server that gets text would read it as one: set "
            "http.tokenizer_path, with which prompts are sent as token ids, or take it out of the prompt"
        )
    for tool in tools:
        if not isinstance(json.loads(tool), dict):
            raise ValueError("a tool is no JSON object")
    if settings.api == "chat":
        return
    if len(messages) != 1 or messages[0].tool_calls or tools:
        raise ValueError(
            f"api 'completions' takes one message as plain text, got {len(messages)} messages and {len(tools)} tools: "
            "set api to 'chat', which keeps roles and tools"
        )


def text_request(request: GenerationRequest, settings: HttpSettings) -> tuple[str, dict[str, Any]]:
    """Route and body of a request whose messages the server reads."""
    body = _sampling(request, settings)
    if settings.api == "completions" or request.is_text:
        return COMPLETIONS, {**body, "prompt": request.messages[0].content + request.opening}
    body["messages"] = [as_chat(message) for message in request.messages]
    if request.opening:
        # So vLLM and SGLang are told that the last message goes on.
        body["messages"].append({"role": "assistant", "content": request.opening})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.tools:
        body["tools"] = [_as_tool(json.loads(tool)) for tool in request.tools]
    return CHAT, body


def token_request(request: GenerationRequest, settings: HttpSettings) -> tuple[str, dict[str, Any]]:
    """Route and body of a request in tokens, answered in tokens with logprobs. The extra fields are vLLM's."""
    return COMPLETIONS, {
        **_sampling(request, settings),
        **_NOTHING_ELSE,
        "prompt": request.prompt_token_ids.tolist(),
        "top_k": request.sampling.top_k,
        # 0: of the sampled token only, not of others beside it.
        "logprobs": 0,
        "return_token_ids": True,
        "return_weight_versions": True,
    }


def _sampling(request: GenerationRequest, settings: HttpSettings) -> dict[str, Any]:
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": settings.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": request.max_tokens,
    }
    # OpenAI's own servers know no top_k: sent only where it was asked for, so that it is never left out in silence.
    optional = {"top_k": sampling.top_k or None, "stop": list(sampling.stop) or None, "seed": request.seed}
    return {**body, **{name: value for name, value in optional.items() if value is not None}}


def _as_tool(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's form of a tool; prompts may carry the function's schema alone."""
    return schema if "function" in schema else {"type": "function", "function": schema}
