"""What vLLM's sampling parameters mean for a record: the sampling as used, and whether the logprobs are the policy's.

vLLM's logprobs (`processed_logprobs`) are those of what was sampled from. That is the policy, divided by the
temperature, only if nothing else shaped it. A parameter that this file does not know shapes.
"""

import json
from typing import Any, Final

from rollstream.schemas.bounds import MAX_TEMPERATURE, MIN_TEMPERATURE
from rollstream.schemas.prompt import Sampling

_RECORDED: Final = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed")
_SHAPELESS: Final = frozenset(
    {
        "n",
        "temperature",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "max_tokens",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "flat_logprobs",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "output_kind",
        "output_text_buffer_length",
        "stream_interval",
        "skip_clone",
    }
)
"""Parameters that say how much is sampled and how it is given out, not from what."""
_MOST_CHARACTERS: Final = 1000


def as_used(params: Any) -> Sampling:
    """The part of `params` that records have a place for."""
    return Sampling(
        temperature=float(params.temperature),
        top_p=float(params.top_p),
        top_k=max(int(params.top_k), 0),
        max_tokens=int(params.max_tokens),
        stop=tuple(params.stop or ()),
        seed=params.seed,
    )


def is_plain(params: Any) -> bool:
    """Whether tokens are sampled from softmax(logits / temperature), temperature > 0, and from nothing else."""
    return MIN_TEMPERATURE <= params.temperature <= MAX_TEMPERATURE and not _shaping(params)


def others(params: Any) -> str:
    """JSON of what shaped the sampling and is not in `as_used`; empty if nothing did. A long value is cut."""
    found = {name: _shown(value) for name, value in _shaping(params).items() if name not in _RECORDED}
    return json.dumps(found, sort_keys=True) if found else ""


def made_plain(params: Any) -> Any:
    """New parameters with temperature 1 that shape nothing, otherwise like `params`."""
    kept = {name: getattr(params, name) for name in _SHAPELESS - {"temperature", "output_text_buffer_length"}}
    return type(params)(temperature=1.0, **kept)


def _shaping(params: Any) -> dict[str, Any]:
    """The parameters that are not as vLLM's defaults have them."""
    usual = type(params)()
    names = [name for name in params.__struct_fields__ if not name.startswith("_") and name not in _SHAPELESS]
    # 0, "", [] and None all mean that nothing is asked; top_k has -1 for it too.
    found = {name: getattr(params, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if (value or None) != (getattr(usual, name) or None) and (name, value) != ("top_k", -1)
    }


def _shown(value: Any) -> Any:
    text = json.dumps(value, default=repr)
    return json.loads(text) if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS]
