"""Bounds of every engine, and the refusal of requests that none can answer, with the same message in each."""

from rollstream.engines.protocol import GenerationRequest
from rollstream.schemas.errors import EngineError


def refuse_impossible(request: GenerationRequest, max_model_len: int) -> None:
    """Raise `EngineError` if the prompt or `max_tokens` is empty, or if both exceed `max_model_len` tokens together."""
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens < 1 or request.max_tokens < 1:
        raise EngineError(
            f"{num_prompt_tokens} prompt tokens and max_tokens {request.max_tokens}: both must be positive"
        )
    if num_prompt_tokens + request.max_tokens > max_model_len:
        raise EngineError(
            f"{num_prompt_tokens} prompt tokens and max_tokens {request.max_tokens} exceed the model's {max_model_len} "
            "together; lower max_tokens"
        )
