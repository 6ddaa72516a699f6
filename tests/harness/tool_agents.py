"""Agents of two model calls: one whose second call goes on after a tool's answer, and one that begins anew."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.protocol import Engine, GenerationRequest
from rollstream.schemas.prompt import Message, PromptSubmitted
from rollstream.schemas.rollout import Turn


class ToolUser:
    """Sorts the prompt, then what a tool says. The tool's tokens follow those of the first answer."""

    said = "30="
    extends = True

    async def run(
        self, prompt: PromptSubmitted, engine: Engine, *, request_id: str, seed: int | None
    ) -> tuple[Turn, ...]:
        asked = _tokens(engine, prompt.messages)
        first = await _turn(engine, prompt, asked, seed, request_id=f"{request_id}/0")
        told = _tokens(engine, (Message(role="tool", content=self.said),))
        before = np.concatenate([asked, first.token_ids]) if self.extends else told[:0]
        prefix = {"prefix_turn": 0, "prefix_tokens": len(before)} if self.extends else {}
        second = await _turn(engine, prompt, told, seed, request_id=f"{request_id}/1", before=before, **prefix)
        return first, second


class Starter(ToolUser):
    """Its second call knows nothing of the first one."""

    extends = False


def _tokens(engine: Engine, messages: Sequence[Message]) -> NDArray[np.int32]:
    found = engine.tokenize(messages, ())
    assert found is not None
    return found


async def _turn(
    engine: Engine,
    prompt: PromptSubmitted,
    asked: NDArray[np.int32],
    seed: int | None,
    *,
    request_id: str,
    before: NDArray[np.int32] | None = None,
    **fields: Any,
) -> Turn:
    started = time.monotonic()
    whole = asked if before is None else np.concatenate([before, asked])
    request = GenerationRequest(
        request_id=request_id,
        prompt_token_ids=whole,
        sampling=prompt.sampling,
        max_tokens=prompt.sampling.max_tokens,
        seed=seed,
    )
    found = await engine.generate(request)
    return Turn(
        prompt_token_ids=asked,
        token_ids=found.token_ids,
        behavior_logprobs=found.behavior_logprobs,
        weight_spans=found.weight_spans,
        finish_reason=found.finish_reason,
        text=found.text,
        latency_seconds=time.monotonic() - started,
        **fields,
    )
