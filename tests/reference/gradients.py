"""What both sides share: a model that computes in float64, an optimizer that notes gradients, and the difference."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rollstream.local.tiny_model import write_tiny_model

Gradients = dict[str, torch.Tensor]
"""Of each parameter, by name."""
LEARNING_RATE = 1.0  # so that a second update meets ratios beyond all bounds


def a_policy(directory: Path) -> Any:
    """A policy that differs from the model in `directory`, which is written."""
    write_tiny_model(directory, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    model = a_model(directory)
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.07 * torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    return model


def a_model(directory: Path) -> Any:
    """The model in `directory`, all in float64."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    compute_in_float64(model)
    return model


def compute_in_float64(model: Any) -> None:
    """Norms and rotary embeddings of transformers compute in float32, whatever the model is.

    So they round differently where a token lies at another place, behind padding or in a shared row.
    """
    for name, norm in list(model.named_modules()):
        if type(norm).__name__ == "Qwen3RMSNorm":
            replacement = torch.nn.RMSNorm(len(norm.weight), eps=norm.variance_epsilon, dtype=torch.float64)
            replacement.weight = norm.weight
            model.set_submodule(name, replacement)
    model.model.rotary_emb = _Rotary(model.model.rotary_emb.inv_freq)


class _Rotary(torch.nn.Module):
    def __init__(self, frequencies: torch.Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies.double()

    def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids [B, L] → cosines and sines [B, L, width of a head]."""
        angles = (position_ids[:, :, None] * self.frequencies).repeat(1, 1, 2)
        return angles.cos().to(hidden), angles.sin().to(hidden)


def recording(model: Any) -> tuple[torch.optim.Optimizer, list[Gradients]]:
    """Plain gradient descent, and a list to which each of its updates adds its gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    updates: list[Gradients] = []

    def note(*_: Any) -> None:
        updates.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

    optimizer.register_step_pre_hook(note)
    return optimizer, updates


def largest_difference(found: list[Gradients], expected: list[Gradients]) -> float:
    """The largest difference of any number, relative to the largest one of its parameter's gradient in that update."""
    assert len(found) == len(expected)
    return max(
        float((ours[name] - theirs).abs().max() / theirs.abs().max())
        for ours, wanted in zip(found, expected, strict=True)
        for name, theirs in wanted.items()
    )
