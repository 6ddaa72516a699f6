"""The policy's forward pass: logprobs and entropies of the tokens that train, and of no others.

With a large vocabulary the logits of the output head take most of the memory. So only the hidden states that predict
a token that trains go through the head, in chunks, and the logits are computed again in the backward pass.
`H`: width, `V`: vocabulary; `B`, `L`, `N` as in `packing.py`.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.hidden_states import PROBE_TOLERANCE, predicting_states
from rollstream.training.learning.packing import MicroBatch

CHUNK_LOGITS = 1 << 27  # 512 MiB as float32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """Of the tokens that train: logprobs [N] with gradient, entropies [N] in nats, with gradient where it is wanted."""

    logprobs: Tensor
    entropies: Tensor


def token_statistics(
    model: PreTrainedModel, batch: MicroBatch[Tensor], *, entropy_gradient: bool = False
) -> TokenStatistics:
    """One forward pass; logits are divided by each sample's temperature."""
    selected = predicting_states(model, batch)
    head = model.get_output_embeddings()
    chunk = max(1, CHUNK_LOGITS // head.weight.shape[0])
    if len(selected) <= chunk:
        logprobs, entropies = _head(head, selected, batch.targets, batch.temperatures, entropy_gradient)
        return TokenStatistics(logprobs=logprobs, entropies=entropies)
    pieces = (torch.split(tensor, chunk) for tensor in (selected, batch.targets, batch.temperatures))
    parts = [
        checkpoint(_head, head, *piece, entropy_gradient, use_reentrant=False) for piece in zip(*pieces, strict=True)
    ]
    return TokenStatistics(
        logprobs=torch.cat([logprobs for logprobs, _ in parts]),
        entropies=torch.cat([entropies for _, entropies in parts]),
    )


def statistics_of_logits(
    logits: Tensor, targets: Tensor, temperatures: Tensor, entropy_gradient: bool
) -> TokenStatistics:
    """logits [N, V], before they are divided by temperatures [N], of targets [N]."""
    normalized = torch.log_softmax(logits.to(temperatures.dtype) / temperatures[:, None], dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(normalized.exp() * normalized).sum(dim=-1)
    return TokenStatistics(logprobs=normalized.gather(1, targets[:, None]).squeeze(1), entropies=entropies)


def _head(
    head: Any, hidden: Tensor, targets: Tensor, temperatures: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """hidden [N, H] → logprobs [N] of targets [N], entropies [N]."""
    found = statistics_of_logits(head(hidden), targets, temperatures, entropy_gradient)
    return found.logprobs, found.entropies


@torch.no_grad()
def refuse_other_heads(model: PreTrainedModel, device: torch.device) -> None:
    """Raise `ConfigurationError` unless the model's logits are its output head applied to its last hidden states.

    `token_statistics` applies the head itself, so it would miss whatever else the model does to its logits.
    """
    probe = torch.arange(8, device=device)[None] % model.config.get_text_config().vocab_size
    hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
    expected = cast(Tensor, model(input_ids=probe, use_cache=False).logits)
    difference = float((model.get_output_embeddings()(hidden) - expected).abs().max())
    if difference > PROBE_TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ConfigurationError(
            f"the logits of {model.config.model_type!r} differ by {difference:.3g} from its head applied to its hidden "
            "states (soft-capped or scaled logits): train a model with a plain output head"
        )
