"""Chat completions of an engine that has no HTTP routes of its own: what a call asks for, and what it is answered."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollstream.engines.protocol import Generation
from rollstream.generator.serve.said import MAX_CHOICES
from rollstream.schemas.bounds import MAX_COUNT, MAX_SAMPLE_TOKENS, MAX_TEMPERATURE, MIN_TEMPERATURE
from rollstream.schemas.prompt import Sampling, ToolCall

_DEFAULT_TOKENS: Final = 256
_HARMLESS: Final = frozenset(
    {
        "messages",
        "tools",
        "user",
        "metadata",
        "store",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "prediction",
    }
)
"""Fields that shape no token; messages and tools are read elsewhere."""


class ChatCall(BaseModel):
    """What this route takes of OpenAI's fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    model: str = Field(max_length=1024)
    temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_SAMPLE_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_SAMPLE_TOKENS)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any], *, is_plain: bool) -> Self:
        """Raises `ValueError`, which says what is wrong, for what this route can't do."""
        if not is_plain:
            _refuse_others(body)
        try:
            return cls.model_validate(dict(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def sampling(self, *, is_plain: bool, room: int) -> Sampling:
        """How each choice is sampled; `room`: tokens that the model has left for it."""
        asked = self.max_completion_tokens or self.max_tokens or _DEFAULT_TOKENS
        temperature = 1.0 if is_plain or self.temperature is None else self.temperature
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            # As vLLM: smaller ones would overflow.
            temperature=max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
            top_p=1.0 if is_plain or self.top_p is None else self.top_p,
            max_tokens=min(asked, room),
            stop=stop,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The answer to a call, in OpenAI's words."""

    response_id: str
    created: int
    model: str
    num_prompt_tokens: int
    choices: Sequence[Generation]

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [
            {"index": number, "message": _message(one), "logprobs": None, "finish_reason": _reason(one)}
            for number, one in enumerate(self.choices)
        ]
        return json.dumps({**self._head("chat.completion"), "choices": choices, "usage": self._usage()}).encode()

    def events(self, *, has_usage: bool) -> bytes:
        """The body of a streamed one: a chunk for each choice, since the engine gives whole answers."""
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": number, "delta": _delta(one), "finish_reason": _reason(one)}]}
            for number, one in enumerate(self.choices)
        ]
        if has_usage:
            chunks.append({"choices": [], "usage": self._usage()})
        head = self._head("chat.completion.chunk")
        texts = [json.dumps({**head, **chunk}) for chunk in chunks]
        return "".join(f"data: {text}\n\n" for text in (*texts, "[DONE]")).encode()

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self) -> dict[str, int]:
        sampled = sum(one.reported_completion_tokens or len(one.token_ids) for one in self.choices)
        asked = max([self.num_prompt_tokens, *(one.reported_prompt_tokens or 0 for one in self.choices)])
        return {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}


def _refuse_others(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        is_unsaid = not value or name in _HARMLESS or name in ChatCall.model_fields
        if not is_unsaid and (name, value) not in (("tool_choice", "auto"), ("tool_choice", "none")):
            raise ValueError(f"{name[:64]!r} is not supported by this engine: leave it out")


def _message(answer: Generation) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["tool_calls"] = [_call(call) for call in answer.tool_calls]
    return message


def _delta(answer: Generation) -> dict[str, Any]:
    delta = _message(answer)
    if answer.tool_calls:
        delta["tool_calls"] = [{"index": place, **_call(call)} for place, call in enumerate(answer.tool_calls)]
    return delta


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(answer: Generation) -> str:
    return "tool_calls" if answer.tool_calls else answer.finish_reason.value
