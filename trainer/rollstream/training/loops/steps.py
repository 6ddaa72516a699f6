"""What the loops share: one update, what becomes of its metrics, and when something is due."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.schemas.errors import BrokenWorldError
from rollstream.training.backends.protocol import Metrics, TrainingBackend
from rollstream.training.metrics import Logger
from rollstream.training.types import RLTrainingConfig, SFTTrainingConfig

_MOST_SKIPPED: Final = 3


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one run."""

    backend: TrainingBackend
    config: SFTTrainingConfig | RLTrainingConfig
    logger: Logger | None
    history: list[Metrics] = field(default_factory=list)
    """The metrics of each step taken."""

    async def take(self, step: int, batch: Mapping[str, Any], others: Mapping[str, float]) -> Metrics:
        """Train on one batch; gives the metrics, with `others`.

        The backend does it whatever becomes of this task, so it is noted also if this is cancelled: that ends with the
        step. Raises `BrokenWorldError` if the last updates were all skipped, because loss or gradient was not finite.
        """
        # The step is asked for before the pass has ended, so the backend never waits between them.
        both = asyncio.gather(self.backend.forward_backward(batch).result(), self.backend.optim_step().result())
        try:
            await asyncio.shield(both)
        finally:
            of_pass, of_step = await both
            metrics = {**of_pass, **of_step, **others}
            self._note(step, metrics)
        return metrics

    def is_due(self, step: int, every: int) -> bool:
        """Whether it is this step's turn; always after the last step."""
        return step % every == 0 or step == self.config.num_steps

    def _note(self, step: int, metrics: Metrics) -> None:
        # Before its checkpoint, so that no kill leaves the step out.
        self.history.append(metrics)
        if self.logger is not None and self.is_due(step, self.config.log_every):
            self.logger.log(metrics, step)
        last = self.history[-_MOST_SKIPPED:]
        if len(last) == _MOST_SKIPPED and all(one.get("skipped") for one in last):
            raise BrokenWorldError(
                f"loss or gradient were not finite in {_MOST_SKIPPED} updates in a row (the last loss: "
                f"{last[-1].get('loss')}): lower the learning rate, or look at the batch; go on from a checkpoint"
            )
