"""What every engine refuses in the same words."""

from rollstream.engines.protocol import GenerationRequest
from rollstream.schemas.errors import EngineError


def refuse_impossible(request: GenerationRequest, max_model_len: int) -> None:
    """Raise `EngineError` for an empty prompt, no tokens to generate, or more than fit into `max_model_len`."""
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
