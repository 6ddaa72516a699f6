"""What the training loops ask of a backend. A class of one's own needs these methods, and no base class."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rollstream.training.backends.future import TrainFuture

Metrics = dict[str, float]


class TrainingBackend(Protocol):
    """Holds a model and its optimizer, and does its work in order while the caller goes on."""

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[Metrics]:
        """Add the gradient of a batch's loss; gives at least `loss` and `grad_norm`, of the gradient so far."""
        ...

    def optim_step(self) -> TrainFuture[Metrics]:
        """Update the weights and clear the gradient; gives at least `lr` and `step`, the updates so far."""
        ...

    async def save_checkpoint(self, step: int, metrics: Mapping[str, Any]) -> Path:
        """Write `step_<step>/` after all that was asked for before; `metrics`, which JSON can hold, come with it."""
        ...

    async def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Go on from a checkpoint; gives its `step` and `metrics`. Needed only by a loop that resumes."""
        ...
