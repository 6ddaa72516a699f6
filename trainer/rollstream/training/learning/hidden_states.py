"""The model's body: hidden states of the positions that predict the tokens of a micro-batch.

Prompts that rows share go through it first. Their keys and values stay in a cache with their gradients, and the rows
go on from there. It is the same computation as with the prompt in each row, up to rounding.
`H`: width; `G`, `P`, `B`, `L`, `N` as in `packing.py`.
"""

import logging
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rollstream.training.learning.packing import Arrays, MicroBatch

_LOG = logging.getLogger(__name__)
PROBE_TOLERANCE: Final = 1e-3
"""Largest difference between two ways to the same values, relative to the largest of them: room for rounding."""


def on_device(batch: MicroBatch[Arrays], device: torch.device, dtype: torch.dtype) -> MicroBatch[Tensor]:
    """The micro-batch as tensors; floating point numbers in `dtype`."""

    def moved(values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        tensor = torch.from_numpy(values).to(device, non_blocking=True)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return MicroBatch(**{one.name: moved(getattr(batch, one.name)) for one in fields(batch)})


def predicting_states(model: PreTrainedModel, batch: MicroBatch[Tensor]) -> Tensor:
    """[N, H] the hidden state that predicts each token that trains."""
    if len(batch.prompts):
        states = _after_shared_prompts(model, batch.prompt_ids, batch.prompt_lengths, batch.prompts, batch.input_ids)
    else:
        whole: Tensor = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        states = whole.flatten(0, 1)
    return states[batch.sources]


def _after_shared_prompts(
    model: PreTrainedModel, prompt_ids: Tensor, prompt_lengths: Tensor, prompts: Tensor, input_ids: Tensor
) -> Tensor:
    """[G + B·L, H]: the states at the ends of the prompts, then those of all rows."""
    cache = DynamicCache(config=model.config)
    given = model.base_model(input_ids=prompt_ids, past_key_values=cache, use_cache=True).last_hidden_state
    ends: Tensor = given[torch.arange(len(given), device=given.device), prompt_lengths - 1]
    if not input_ids.shape[1]:
        return ends
    cache.batch_select_indices(prompts)
    columns = torch.arange(prompt_ids.shape[1] + input_ids.shape[1], device=given.device)
    lengths = prompt_lengths[prompts][:, None]
    # What pads the prompts lies before the rows, so they must be told not to look at it.
    seen = (columns < lengths) | (columns >= prompt_ids.shape[1])
    states = model.base_model(
        input_ids=input_ids,
        past_key_values=cache,
        attention_mask=seen,
        position_ids=lengths + columns[: input_ids.shape[1]],
        use_cache=True,
    ).last_hidden_state
    return torch.cat([ends, states.flatten(0, 1)])


@torch.no_grad()
def can_share_prompts(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether the model gives the same hidden states after a shared prompt: tried on a few tokens.

    It does not where layers keep something else than the keys and values of all tokens, e.g. of a sliding window.
    """
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        return False
    tokens = torch.arange(14, device=device) % model.config.get_text_config().vocab_size
    long, short, row = tokens[:5], tokens[5:8], tokens[8:]
    prompt_ids = torch.stack([long, torch.nn.functional.pad(short, (0, 2))])
    order = torch.tensor([1, 0, 1], device=device)
    lengths = torch.tensor([5, 3], device=device)
    try:
        found = _after_shared_prompts(model, prompt_ids, lengths, order, row.expand(3, -1))
    except (AttributeError, TypeError, ValueError) as error:
        _LOG.info("%s computes each sample's prompt by itself: %s", model.config.model_type, error)
        return False
    whole = [
        model.base_model(input_ids=torch.cat([prompt, row])[None], use_cache=False).last_hidden_state[0]
        for prompt in (long, short)
    ]
    ends = torch.stack([whole[0][4], whole[1][2]])
    expected = torch.cat([ends, whole[1][3:], whole[0][5:], whole[1][3:]])
    return float((found - expected).abs().max()) <= PROBE_TOLERANCE * max(1.0, float(expected.abs().max()))
