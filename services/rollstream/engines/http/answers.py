"""Takes a server's JSON answer apart. All that it says is checked against the request, and against itself.

What contradicts is no answer: the call raises `EngineError`, so that its sample is unresolved. Of an answer in tokens
the ids are believed, and the text is made from them.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.http.replies import message_in
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.process.terminal import shown
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
# Where servers put what a model thought before its answer.
_REASONING: Final = ("reasoning_content", "reasoning")


def text_generation(answer: Any, request: GenerationRequest) -> Generation:
    """A chat or text completion: text, calls of tools, and the usage that the server reports. Raises `EngineError`."""
    choice = _choice(answer)
    message = choice.get("message", choice)
    if not isinstance(message, dict):
        raise EngineError(f"the answer's message is no object but {type(message).__name__}")
    tool_calls = _tool_calls(message.get("tool_calls"))
    num_prompt, num_completion = _usage(answer)
    if num_completion is not None and num_completion > request.max_tokens:
        raise EngineError(
            f"the answer's usage has {num_completion} tokens, asked for were at most {request.max_tokens}"
        )
    finish_reason = _finish_reason(choice)
    text = next((message[name] for name in ("content", "text", "refusal") if message.get(name) is not None), None)
    if text is None and not tool_calls:
        _refuse_nothing(message, finish_reason, num_completion)
    if not isinstance(text, str | None):
        raise EngineError(f"the answer's text is no text but {type(text).__name__}")
    return Generation(
        token_ids=np.zeros(0, dtype=np.int32),
        behavior_logprobs=np.zeros(0, dtype=np.float32),
        weight_spans=(),
        finish_reason=finish_reason,
        text=text or "",
        tool_calls=tool_calls,
        reported_prompt_tokens=num_prompt,
        reported_completion_tokens=num_completion,
    )


def token_generation(
    answer: Any,
    request: GenerationRequest,
    *,
    spans: tuple[WeightSpan, ...] | None,
    weight_version: int,
    detokenize: Callable[[NDArray[np.int32]], str],
) -> Generation:
    """A text completion with token ids and logprobs, as vLLM gives them. Raises `EngineError`.

    `spans`: what the server reports; None: no token is of an older version than `weight_version`, which stands for all.
    """
    choice = _choice(answer)
    if choice.get("token_ids") is None:
        raise EngineError(
            "the answer has no token_ids: with tokenizer_path the servers must know return_token_ids, as vLLM does; "
            "without it their answers are text, which never trains"
        )
    token_ids = token_ids_of(choice["token_ids"], request.max_tokens)
    finish_reason = _finish_reason(choice)
    if finish_reason is FinishReason.LENGTH and len(token_ids) < request.max_tokens:
        raise EngineError(
            f"finish_reason 'length' after {len(token_ids)} tokens, but {request.max_tokens} were allowed"
        )
    _refuse_other_prompt(choice.get("prompt_token_ids"), request)
    num_prompt, num_completion = _usage(answer)
    if num_prompt not in (None, len(request.prompt_token_ids)) or num_completion not in (None, len(token_ids)):
        raise EngineError(
            f"the answer's usage has {num_prompt} and {num_completion} tokens, but there are "
            f"{len(request.prompt_token_ids)} of the prompt and {len(token_ids)} of the answer"
        )
    logprobs = choice.get("logprobs")
    found = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    whole = (WeightSpan(weight_version=weight_version, start=0, end=len(token_ids)),)
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=logprobs_of(found, len(token_ids)),
        weight_spans=spans or whole,
        finish_reason=finish_reason,
        text=_text_of(detokenize(token_ids), choice.get("text"), request.sampling.stop),
        reported_prompt_tokens=num_prompt,
        reported_completion_tokens=num_completion,
    )


def reported_spans(answer: Any, oldest: int, newest: int) -> tuple[WeightSpan, ...] | None:
    """Which version sampled which tokens, where the server says so (vLLM from 0.33); else None. Raises `EngineError`.

    They cover all tokens without gaps, and are of versions from `oldest` to `newest`, none older than the one before.
    """
    choice = _choice(answer)
    places = choice.get("weight_versions")
    if not places:
        return None
    if not isinstance(places, list) or not all(isinstance(place, dict) for place in places):
        raise EngineError(f"the answer's weight_versions can't be read: {shown(places)}")
    spans, position, least = [], 0, oldest
    for place in places:
        version, end = _version(place.get("version")), place.get("end")
        if type(end) is not int or place.get("start") != position or not position <= end <= MAX_SAMPLE_TOKENS:
            raise EngineError(f"the answer's weight_versions do not cover its tokens: {shown(places)}")
        if not least <= version <= newest:
            raise EngineError(f"the answer names version {version}, but it was sampled by {oldest} to {newest}")
        if end > position:
            spans.append(WeightSpan(weight_version=version, start=position, end=end))
        position, least = end, version
    found = choice.get("token_ids")
    if position != (len(found) if isinstance(found, list) else 0):
        raise EngineError(f"the answer's weight_versions do not cover its tokens: {shown(places)}")
    return tuple(spans)


def _version(label: Any) -> int:
    """The number in a label of ours; raises `EngineError` for another, as of a server that started anew."""
    if isinstance(label, str) and label.isascii() and label.isdigit() and len(label) <= len(str(MAX_COUNT)):
        return int(label)
    raise EngineError(f"the answer's weight_versions have a label that is no version: {shown(label)}")


def _choice(answer: Any) -> dict[str, Any]:
    """The answer's one choice. An error beside it, as some proxies give with status 200, is the answer."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    found = choices[0] if isinstance(choices, list) and choices else None
    for place in (answer, found):
        if isinstance(place, dict) and place.get("error"):
            raise EngineError(f"the server answered with an error: {message_in({'error': place['error']})[:500]}")
    if not isinstance(found, dict):
        raise EngineError(f"the answer has no choices: {shown(answer)}")
    if isinstance(choices, list) and len(choices) > 1:
        raise EngineError(f"the answer has {len(choices)} choices, one was asked for")
    return found


def _finish_reason(choice: dict[str, Any]) -> FinishReason:
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in _FINISHED:
        raise EngineError(f"the server ended the answer with finish_reason {shown(reason)}")
    return _FINISHED[reason]


def _usage(answer: Any) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer; None where the server says nothing."""
    usage = answer.get("usage")
    if usage is None:
        return None, None
    if not isinstance(usage, dict):
        raise EngineError(f"the answer's usage is no object but {type(usage).__name__}")
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    for count in counts:
        if count is not None and (type(count) is not int or not 0 <= count <= MAX_COUNT):
            raise EngineError(f"the answer's usage has {shown(count)} tokens")
    return counts


def _refuse_nothing(message: dict[str, Any], finish_reason: FinishReason, num_completion: int | None) -> None:
    """Refuse an answer without text, unless the model spent its tokens on thinking, or on nothing up to the bound."""
    has_thought = any(isinstance(message.get(name), str) and message[name] for name in _REASONING)
    if not num_completion or not (has_thought or finish_reason is FinishReason.LENGTH):
        raise EngineError(
            "the answer has neither text nor calls of tools, and does not say that its tokens went into thinking"
        )


def _tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None or calls == []:
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
        raise EngineError(f"the answer's tool_calls can't be read: {str(error)[:500]}") from error


def token_ids_of(found: Any, max_tokens: int) -> NDArray[np.int32]:
    """The token ids in an answer, at least one. Raises `EngineError` for anything else."""
    is_counts = isinstance(found, list) and all(type(token) is int and 0 <= token < 2**31 for token in found)
    if not is_counts or not 1 <= len(found) <= max_tokens:
        number = f"{len(found)} values" if isinstance(found, list) else type(found).__name__
        raise EngineError(
            f"the answer's token_ids are not 1 to {max_tokens} token ids, as were asked for, but {number}"
        )
    return np.array(found, dtype=np.int32)


def _refuse_other_prompt(found: Any, request: GenerationRequest) -> None:
    if found is not None and found != request.prompt_token_ids.tolist():
        raise EngineError(f"the server read another prompt than was asked: prompt_token_ids {shown(found)}")


def logprobs_of(found: Any, num_tokens: int) -> NDArray[np.float32]:
    """The logprobs in an answer, one for each token. Raises `EngineError` for anything else."""
    if not isinstance(found, list) or len(found) != num_tokens:
        raise EngineError(f"the answer has not one logprob for each of its {num_tokens} tokens")
    if not all(type(one) in (int, float) and MIN_LOGPROB <= one <= MAX_LOGPROB for one in found):
        raise EngineError(f"the answer has a logprob that is not in [{MIN_LOGPROB:g}, 0]")
    return np.array(found, dtype=np.float32)


def _text_of(derived: str, claimed: Any, stops: tuple[str, ...]) -> str:
    """The text of the ids, up to the first text that ends an answer. Raises if the server claims another one."""
    if not isinstance(claimed, str):
        raise EngineError(f"the answer's text is no text but {type(claimed).__name__}")
    ends = [derived.find(stop) for stop in stops if stop in derived]
    text = derived[: min(ends, default=len(derived))]
    # A server decodes token by token: it may differ in spaces, and at a character of which only a part was sampled.
    whole, said = _letters(derived), _letters(claimed)
    if not whole.startswith(said) or (not ends and whole != said):
        raise EngineError(f"the answer's text {shown(claimed)} is not that of its token_ids, {shown(derived)}")
    return text


def _letters(text: str) -> str:
    return "".join(text.replace("\ufffd", "").split())
