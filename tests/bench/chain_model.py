"""Writes tiny models whose answers follow a given chain of characters: for benches that need answers of known lengths.

The model is as large, and computes as much, as the tiny model with its random weights. Only its head and its
embeddings are set: the logits of the next token are the logarithms of what the chain says for the current one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Final

from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from tests.bench.model_sizes import MODEL_SIZES

Chain = Mapping[str, Mapping[str, float]]
"""Character → how probable each character is after it. `STOP` ends the answer."""

STOP: Final = "<eos>"
_NEVER: Final = -30.0
"""Logit of what the chain does not name, beside logarithms of probabilities."""
_PHASES: Final = 3
_SIGMA: Final = 0.6


def endless(characters: str) -> Chain:
    """After each character any of them is as probable as another, and no answer ends."""
    return {one: dict.fromkeys(characters, 1 / len(characters)) for one in characters}


def spread_lengths(starts: Sequence[str], median_tokens: float) -> Chain:
    """Answers whose lengths are about log-normal, with an answer's median decided by its prompt's last character.

    `starts`: strings of three characters. Each is passed through from left to right, and every character repeats itself
    for as long as a coin says, so the length is a sum of three geometric ones. Their means differ by `_SIGMA` in the
    logarithm from one string to the other; together the logarithm of the length has a deviation of about 0.85.
    """
    chain: dict[str, dict[str, float]] = {}
    for index, phases in enumerate(starts):
        quantile = NormalDist().inv_cdf((index + 0.5) / len(starts))
        goes_on = _PHASES / max(_PHASES + 1, median_tokens * math.exp(_SIGMA * quantile))
        for current, following in zip(phases, [*phases[1:], STOP], strict=True):
            chain[current] = {current: 1 - goes_on, following: goes_on}
    return chain


def write_chain_model(path: Path, chain: Chain, *, max_length: int) -> None:
    """Write a model of the demo's size, with its head apart from the embeddings, into directory `path`."""
    import torch
    from transformers import AutoModelForCausalLM

    write_tiny_model(path, seed=0, tie_word_embeddings=False, max_length=max_length, **MODEL_SIZES["demo"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    width = MODEL_SIZES["demo"]["hidden"]
    # A single one in `width` channels is the square root of `width` after the last norm.
    scale = math.sqrt(width)
    with torch.no_grad():
        for layer in model.model.layers:
            # The layers compute as they always do, but what they found is not added.
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings = model.model.embed_tokens.weight
        embeddings.copy_(torch.eye(len(VOCABULARY), width))
        head = model.lm_head.weight
        head.fill_(_NEVER / scale)
        for current, following in chain.items():
            for character, probability in following.items():
                logit = math.log(probability)
                head[VOCABULARY.index(character), VOCABULARY.index(current)] = logit / scale
    model.save_pretrained(path)
