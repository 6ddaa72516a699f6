"""Requests and answers of vLLM, and what they are for us."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.deadline import is_over, nothing_sampled
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.schemas.errors import EngineError
from rollstream.schemas.rollout import FinishReason, WeightSpan

_FINISHED: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """One sequence that vLLM's own HTTP routes ask for.

    `prompt`: vLLM's, with its token ids. `params`: vLLM's, with n = 1. `reasoning`: what its routes know of the parts
    of an answer. `on_taken_back` is told each time that an update comes before the first token. `ends_at`: as in
    `GenerationRequest`.
    """

    request_id: str
    prompt: Mapping[str, Any]
    params: Any
    tenant: str
    ends_at: float
    on_taken_back: Callable[[], None]
    reasoning: Mapping[str, Any] = field(default_factory=dict)

    def prompt_of(self, version: str) -> dict[str, Any]:
        """The prompt for a weight version. It reads nothing from the cache that other weights or tenants left there.

        The time that a cached prompt takes would tell a tenant what another one asked.
        """
        return {**self.prompt, "cache_salt": f"{version}/{self.tenant}"}


def cut_if_late(sampled: Any, ends_at: float, num_tokens: int) -> None:
    """If the deadline has ended an answer of `num_tokens` so far, say that it is cut off: the client has not left."""
    if sampled.finish_reason == "abort" and is_over(ends_at):
        if not num_tokens:
            raise nothing_sampled()
        sampled.finish_reason = "length"


def sampling_params(request: GenerationRequest, stop_token_ids: Sequence[int] = ()) -> Any:
    """What vLLM is asked. One of `stop_token_ids` ends the answer and belongs to it, as the model's own end does."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        top_k=request.sampling.top_k,
        stop=list(request.sampling.stop),
        stop_token_ids=list(stop_token_ids) or None,
        max_tokens=request.max_tokens,
        seed=request.seed,
        # 0: of the sampled token only, not of others beside it.
        logprobs=0,
        flat_logprobs=True,
        # Only stop texts need it: detokenizing each token and each logprob's token takes a sixth of the thread's time.
        detokenize=bool(request.sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        # vLLM then copies the object, but not what lies in it: nobody else has it, and a deep copy takes 50 us.
        skip_clone=True,
    )


def checked(answer: Any, request: GenerationRequest) -> Any:
    is_late = answer.finish_reason == "abort" and is_over(request.ends_at)
    if is_late and not answer.token_ids:
        raise nothing_sampled()
    if (answer.finish_reason not in _FINISHED and not is_late) or answer.weight_versions is None:
        raise EngineError(f"vLLM ended the request with {answer.finish_reason!r}, spans {answer.weight_versions}")
    return answer


def spans_of(answer: Any) -> tuple[WeightSpan, ...]:
    """Which version sampled which tokens; only the last output of a sequence says it."""
    return tuple(
        WeightSpan(weight_version=int(span.version), start=span.start, end=span.end)
        for span in answer.weight_versions or ()
        if span.end > span.start
    )


def logprobs_of(logprobs: Any, token_ids: Sequence[int]) -> list[float]:
    """The logprob of each sampled token, from either form that vLLM has."""
    if hasattr(logprobs, "start_indices"):
        return [logprobs.logprobs[start] for start in logprobs.start_indices]
    return [position[token].logprob for position, token in zip(logprobs or (), token_ids, strict=True)]


def generation_of(answer: Any, token_ids: NDArray[np.int32], text: str) -> Generation:
    return Generation(
        token_ids=token_ids,
        behavior_logprobs=np.array(logprobs_of(answer.logprobs, answer.token_ids), dtype=np.float32),
        weight_spans=spans_of(answer),
        finish_reason=_FINISHED.get(answer.finish_reason, FinishReason.LENGTH),
        text=text,
    )
