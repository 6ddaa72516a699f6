"""Log probabilities of given tokens, computed with transformers: the reference that engines are compared with."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.harness.late import Late

torch = Late("torch")
Tokens = NDArray[np.int32]
Logprobs = NDArray[np.float32]


def forced_logprobs(path: Path, prompt: Tokens, sampled: Tokens, temperature: float) -> Logprobs:
    """Logprobs [T] of `sampled` [T] after `prompt` [P], one forward pass in float32."""
    tokens = torch.from_numpy(np.concatenate([prompt, sampled[:-1]])).long()[None]
    with torch.inference_mode():
        logits = _model(path)(tokens).logits[0, len(prompt) - 1 :]
    return _of_sampled(logits, sampled, temperature)


def replayed_logprobs(
    old: Path, new: Path, *, prompt: Tokens, sampled: Tokens, boundary: int, temperature: float
) -> Logprobs:
    """Logprobs of `sampled[boundary:]` when the new weights go on with the old weights' KV cache.

    The cache covers all but the newest token when the update lands, so the new weights also compute that one.
    """
    tokens = torch.from_numpy(np.concatenate([prompt, sampled[:-1]])).long()[None]
    cached = len(prompt) + boundary - 1
    with torch.inference_mode():
        cache = _model(old)(tokens[:, :cached], use_cache=True).past_key_values
        logits = _model(new)(tokens[:, cached:], past_key_values=cache).logits[0]
    return _of_sampled(logits, sampled[boundary:], temperature)


def _of_sampled(logits: Any, sampled: Tokens, temperature: float) -> Logprobs:
    logprobs = (logits.float() / temperature).log_softmax(dim=-1)
    chosen: Logprobs = logprobs.gather(1, torch.tensor(sampled).long()[:, None])[:, 0].numpy()
    return chosen


@cache
def _model(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    # More threads gain nothing on a tiny model, and wait for each other beside the engines' processes.
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
