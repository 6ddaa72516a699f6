"""What the loops share: one update, when something is due, and when a run makes no sense anymore."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollstream.schemas.errors import BrokenWorldError
from rollstream.training.backends.protocol import Metrics, TrainingBackend

_MOST_SKIPPED: Final = 3


async def update(backend: TrainingBackend, batch: Mapping[str, Any]) -> Metrics:
    """Train on one batch. The step is asked for before the pass has ended, so the backend never waits between them."""
    forward, step = backend.forward_backward(batch), backend.optim_step()
    return {**await forward.result(), **await step.result()}


def is_due(step: int, every: int, num_steps: int) -> bool:
    """Whether it is this step's turn; always after the last step."""
    return step % every == 0 or step == num_steps


def refuse_divergence(history: Sequence[Metrics]) -> None:
    """Raise `BrokenWorldError` if the last updates were all skipped, because loss or gradient was not finite."""
    last = history[-_MOST_SKIPPED:]
    if len(last) == _MOST_SKIPPED and all(metrics.get("skipped") for metrics in last):
        raise BrokenWorldError(
            f"loss or gradient were not finite in {_MOST_SKIPPED} updates in a row (the last loss: "
            f"{last[-1].get('loss')}): lower the learning rate, or look at the batch; go on from a checkpoint"
        )
