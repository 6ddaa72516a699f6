"""Takes a server's JSON answer apart. All that it says is checked: the records are made from it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.protocol import Generation
from rollstream.schemas.bounds import MAX_COUNT, MAX_ITEMS, MAX_LOGPROB, MAX_SAMPLE_TOKENS, MIN_LOGPROB
from rollstream.schemas.errors import EngineError
from rollstream.schemas.prompt import ToolCall
from rollstream.schemas.rollout import FinishReason, WeightSpan

_FINISHED: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
}


def text_generation(answer: Any) -> Generation:
    """A chat or text completion: text, calls of tools, and the usage that the server reports. Raises `EngineError`."""
    choice, (num_prompt, num_completion) = _choice(answer), _usage(answer)
    message = choice.get("message", choice)
    if not isinstance(message, dict):
        raise EngineError(f"the answer's message is no object but {type(message).__name__}")
    tool_calls = _tool_calls(message.get("tool_calls"))
    text = next((message[name] for name in ("content", "text", "refusal") if message.get(name) is not None), None)
    if text is None and not tool_calls and not num_completion:
        raise EngineError("the answer has neither text nor calls of tools, and reports no sampled tokens")
    if not isinstance(text, str | None):
        raise EngineError(f"the answer's text is no text but {type(text).__name__}")
    return Generation(
        token_ids=np.zeros(0, dtype=np.int32),
        behavior_logprobs=np.zeros(0, dtype=np.float32),
        weight_spans=(),
        finish_reason=_finish_reason(choice),
        text=text or "",
        tool_calls=tool_calls,
        reported_prompt_tokens=num_prompt,
        reported_completion_tokens=num_completion,
    )


def token_generation(answer: Any, spans: tuple[WeightSpan, ...] | None, weight_version: int) -> Generation:
    """A text completion with token ids and logprobs, as vLLM gives them. Raises `EngineError`.

    `spans`: what the server reports; None: all tokens are of `weight_version`.
    """
    choice, (num_prompt, num_completion) = _choice(answer), _usage(answer)
    token_ids = _token_ids(choice.get("token_ids"))
    logprobs = choice.get("logprobs")
    found = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    whole = (WeightSpan(weight_version=weight_version, start=0, end=len(token_ids)),)
    text = choice.get("text")
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=_logprobs(found, len(token_ids)),
        weight_spans=spans or whole,
        finish_reason=_finish_reason(choice),
        text=text if isinstance(text, str) else "",
        reported_prompt_tokens=num_prompt,
        reported_completion_tokens=num_completion,
    )


def reported_spans(answer: Any) -> tuple[WeightSpan, ...] | None:
    """Which version sampled which tokens, where the server says so (vLLM from 0.33); else None. Raises `EngineError`.

    They cover all tokens without gaps.
    """
    choice = _choice(answer)
    places = choice.get("weight_versions")
    if not places:
        return None
    try:
        spans = tuple(
            WeightSpan(weight_version=int(place["version"]), start=place["start"], end=place["end"])
            for place in places
            if place["end"] > place["start"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the answer's weight_versions can't be read: {error}") from error
    ends = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != ends[:-1] or ends[-1] != len(choice.get("token_ids") or ()):
        raise EngineError(f"the answer's weight_versions {places} do not cover its tokens")
    return spans


def _choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EngineError(f"the answer has no choices: {str(answer)[:200]}")
    choice: dict[str, Any] = choices[0]
    return choice


def _finish_reason(choice: dict[str, Any]) -> FinishReason:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in _FINISHED:
        raise EngineError(f"the server ended the answer with finish_reason {reason!r}")
    return _FINISHED[reason]


def _usage(answer: Any) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer; None where the server says nothing."""
    usage = answer.get("usage") or {}
    if not isinstance(usage, dict):
        raise EngineError(f"the answer's usage is no object but {type(usage).__name__}")
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    for count in counts:
        if count is not None and (type(count) is not int or not 0 <= count <= MAX_COUNT):
            raise EngineError(f"the answer's usage has {count!r} tokens")
    return counts


def _tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    if not calls:
        return ()
    if not isinstance(calls, list) or len(calls) > MAX_ITEMS:
        raise EngineError(f"the answer's tool_calls are no list of at most {MAX_ITEMS}")
    try:
        return tuple(
            ToolCall(
                call_id=call.get("id") or "",
                name=call["function"]["name"],
                arguments=call["function"].get("arguments") or "",
            )
            for call in calls
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the answer's tool_calls can't be read: {error}") from error


def _token_ids(found: Any) -> NDArray[np.int32]:
    if found is None:
        raise EngineError(
            "the answer has no token_ids: with tokenizer_path the servers must know return_token_ids, as vLLM does; "
            "without it their answers are text, which never trains"
        )
    is_counts = isinstance(found, list) and all(type(token) is int and 0 <= token < 2**31 for token in found)
    if not is_counts or not 1 <= len(found) <= MAX_SAMPLE_TOKENS:
        raise EngineError(f"the answer's token_ids are not 1 to {MAX_SAMPLE_TOKENS} token ids")
    return np.array(found, dtype=np.int32)


def _logprobs(found: Any, num_tokens: int) -> NDArray[np.float32]:
    if not isinstance(found, list) or len(found) != num_tokens:
        raise EngineError(f"the answer has not one logprob for each of its {num_tokens} tokens")
    if not all(type(one) in (int, float) and MIN_LOGPROB <= one <= MAX_LOGPROB for one in found):
        raise EngineError(f"the answer has a logprob that is not in [{MIN_LOGPROB:g}, 0]")
    return np.array(found, dtype=np.float32)
