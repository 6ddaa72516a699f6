"""What the trainer's loop asks of a training backend, and what a step gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollstream.training.learning.bounds import ModelBounds
from rollstream.training.learning.samples import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one `train_step` did."""

    loss: float
    """Mean over the optimizer updates that were applied; if none was, that of the one that was skipped."""
    grad_norm: float
    """Largest gradient norm of these updates, before clipping."""
    num_updates: int
    """Optimizer updates applied; 0 when the weights did not change."""
    skipped: bool
    """Whether a loss or gradient that is not finite ended the step early."""
    metrics: Mapping[str, float]
    """Named as in `step_metrics`."""
    seconds: Mapping[str, float]
    """Wall time by phase: packing, forward_backward, optimizer."""


class TrainingBackend(Protocol):
    """Holds the policy and its optimizer."""

    @property
    def tokenizer_sha256(self) -> str:
        """Hash of the tokenizer of the model that it trains."""
        ...

    @property
    def chat_template_sha256(self) -> str:
        """Hash of that tokenizer's chat template."""
        ...

    @property
    def bounds(self) -> ModelBounds:
        """The token ids and lengths that it trains on."""
        ...

    def train_step(self, samples: Sequence[TrainingSample], *, step: int) -> StepReport:
        """One optimizer step on `samples`; `step` seeds the order of samples in minibatches.

        Raises ValueError if no sample has a token to train.
        """
        ...

    def save_weights(self, path: Path) -> None:
        """Write a model directory that transformers and vLLM load (weights, config, tokenizer) into `path`."""
        ...

    def save_state(self, path: Path) -> None:
        """Write model, optimizer, schedule and random state into the directory `path`; the caller fsyncs it."""
        ...

    def load_state(self, path: Path) -> None:
        """Restore what `save_state` wrote: with the same settings, the next step gives the same weights, bit for bit.

        Settings that changed since are in force from the next step on; each is logged.
        """
        ...
