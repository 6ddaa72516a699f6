"""What the loops share: one update, what becomes of its metrics, and when something is due."""

from collections.abc import Mapping
from typing import Any, Final

from rollstream.schemas.errors import BrokenWorldError
from rollstream.training.backends.protocol import Metrics, TrainingBackend
from rollstream.training.metrics import Logger
from rollstream.training.types import RLTrainingConfig, SFTTrainingConfig

_MOST_SKIPPED: Final = 3


async def update(backend: TrainingBackend, batch: Mapping[str, Any]) -> Metrics:
    """Train on one batch. The step is asked for before the pass has ended, so the backend never waits between them."""
    forward, step = backend.forward_backward(batch), backend.optim_step()
    return {**await forward.result(), **await step.result()}


def is_due(step: int, every: int, num_steps: int) -> bool:
    """Whether it is this step's turn; always after the last step."""
    return step % every == 0 or step == num_steps


def note(
    history: list[Metrics],
    metrics: Metrics,
    step: int,
    config: SFTTrainingConfig | RLTrainingConfig,
    logger: Logger | None,
) -> None:
    """Keep the metrics of a step, and log them if it is due: before its checkpoint, so that no kill leaves them out.

    Raises `BrokenWorldError` if the last updates were all skipped, because loss or gradient was not finite.
    """
    history.append(metrics)
    if logger is not None and is_due(step, config.log_every, config.num_steps):
        logger.log(metrics, step)
    last = history[-_MOST_SKIPPED:]
    if len(last) == _MOST_SKIPPED and all(metrics.get("skipped") for metrics in last):
        raise BrokenWorldError(
            f"loss or gradient were not finite in {_MOST_SKIPPED} updates in a row (the last loss: "
            f"{last[-1].get('loss')}): lower the learning rate, or look at the batch; go on from a checkpoint"
        )
