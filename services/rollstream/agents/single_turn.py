"""The agent `single_turn`: one model call answers the prompt."""

import time

import numpy as np

from rollstream.engines.protocol import Engine, GenerationRequest
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import Turn


class SingleTurn:
    """The default agent; it has no options."""

    def __init__(self, **options: str) -> None:
        if options:
            raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"single_turn has no options, got {sorted(options)}")

    async def run(
        self, prompt: PromptSubmitted, engine: Engine, *, request_id: str, seed: int | None
    ) -> tuple[Turn, ...]:
        """One turn. Raises `FailedSampleError` for a prompt that the template does not take, or that leaves no room."""
        try:
            prompt_token_ids = engine.tokenize(prompt.messages, prompt.tools)
        except ValueError as error:
            raise FailedSampleError(FailureCode.BAD_PROMPT, f"the chat template does not take it: {error}") from error
        if prompt_token_ids is None:  # the engine reads the messages, and its server knows their length
            prompt_token_ids = np.zeros(0, dtype=np.int32)
        room = engine.max_model_len - len(prompt_token_ids)
        if room < 1:
            raise FailedSampleError(
                FailureCode.PROMPT_TOO_LONG,
                f"{len(prompt_token_ids)} tokens leave no room in the model's {engine.max_model_len}",
            )
        started = time.monotonic()
        generation = await engine.generate(
            GenerationRequest(
                request_id=request_id,
                prompt_token_ids=prompt_token_ids,
                sampling=prompt.sampling,
                max_tokens=min(prompt.sampling.max_tokens, room),
                seed=seed,
                messages=prompt.messages,
                tools=prompt.tools,
            )
        )
        turn = Turn(
            prompt_token_ids=prompt_token_ids,
            token_ids=generation.token_ids,
            behavior_logprobs=generation.behavior_logprobs,
            weight_spans=generation.weight_spans,
            finish_reason=generation.finish_reason,
            text=generation.text,
            tool_calls=generation.tool_calls,
            reported_prompt_tokens=generation.reported_prompt_tokens,
            reported_completion_tokens=generation.reported_completion_tokens,
            latency_seconds=time.monotonic() - started,
        )
        return (turn,)
