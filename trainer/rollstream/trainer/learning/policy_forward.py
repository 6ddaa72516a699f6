"""The policy's forward pass: logprobs and entropies of the tokens that train, and of no others.

With a large vocabulary the logits of the output head take most of the memory. So only the hidden states that predict
a token that trains go through the head, in chunks, and the logits are computed again in the backward pass.
`H`: width, `V`: vocabulary; `B`, `L`, `N` as in `packing.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollstream.schemas.errors import ConfigurationError
from rollstream.trainer.learning.packing import MicroBatch

CHUNK_LOGITS = 1 << 27  # 512 MiB as float32
# Relative to the largest logit: leaves room for rounding.
_PROBE_TOLERANCE = 1e-3


class CausalModel(Protocol):
    """The part of a transformers causal language model that is used here."""

    config: Any
    base_model: Any

    def get_output_embeddings(self) -> Any:
        """The output head."""
        ...

    def __call__(self, **inputs: Any) -> Any:
        """The whole forward pass."""
        ...

    def save_pretrained(self, path: Path, **options: Any) -> None:
        """Write weights and config."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """A `MicroBatch` on the device; see there for the shapes."""

    input_ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    temperatures: Tensor
    token_weights: Tensor
    lagged: Tensor

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device) -> Self:
        """Copy to `device`."""
        return cls(
            **{name: torch.from_numpy(getattr(batch, name)).to(device, non_blocking=True) for name in cls.__slots__}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """Of the tokens that train, in float32: logprobs [N] with gradient, entropies [N] without, in nats."""

    logprobs: Tensor
    entropies: Tensor


def token_statistics(model: CausalModel, batch: DeviceBatch) -> TokenStatistics:
    """One forward pass; logits are divided by each sample's temperature."""
    hidden = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    selected = hidden[batch.rows, batch.columns]
    head = model.get_output_embeddings()
    chunk = max(1, CHUNK_LOGITS // head.weight.shape[0])
    if len(selected) <= chunk:
        logprobs, entropies = _head(head, selected, batch.targets, batch.temperatures)
        return TokenStatistics(logprobs=logprobs, entropies=entropies)
    pieces = (torch.split(tensor, chunk) for tensor in (selected, batch.targets, batch.temperatures))
    parts = [checkpoint(_head, head, *piece, use_reentrant=False) for piece in zip(*pieces, strict=True)]
    return TokenStatistics(
        logprobs=torch.cat([logprobs for logprobs, _ in parts]),
        entropies=torch.cat([entropies for _, entropies in parts]),
    )


def _head(head: Any, hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """hidden [N, H] → logprobs [N] of targets [N], entropies [N]."""
    logits = head(hidden).float() / temperatures[:, None]
    normalized = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        detached = normalized.detach()
        entropies = -(detached.exp() * detached).sum(dim=-1)
    return normalized.gather(1, targets[:, None]).squeeze(1), entropies


@torch.no_grad()
def refuse_other_heads(model: CausalModel, device: torch.device) -> None:
    """Raise `ConfigurationError` unless the model's logits are its output head applied to its last hidden states.

    `token_statistics` applies the head itself, so it would miss whatever else the model does to its logits.
    """
    probe = torch.arange(8, device=device)[None] % model.config.get_text_config().vocab_size
    hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state
    expected = cast(Tensor, model(input_ids=probe, use_cache=False).logits)
    difference = float((model.get_output_embeddings()(hidden) - expected).abs().max())
    if difference > _PROBE_TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ConfigurationError(
            f"the logits of {model.config.model_type!r} differ by {difference:.3g} from its head applied to its hidden "
            "states (soft-capped or scaled logits): train a model with a plain output head"
        )
