"""One step of training on a batch of samples: plan, forward and backward, optimizer updates, report."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollstream.schemas.ledger import UPDATES_SKIPPED
from rollstream.training.learning.learner import Learner, Packed, Update
from rollstream.training.learning.plan import minibatches
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.step_metrics import StepReport, learning_metrics


@dataclass(slots=True)
class _Stopwatch:
    """Wall time by phase, in seconds."""

    seconds: dict[str, float] = field(
        default_factory=lambda: {"packing": 0.0, "forward_backward": 0.0, "optimizer": 0.0}
    )
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now


def train_step(learner: Learner, samples: Sequence[TrainingSample], *, step: int) -> StepReport:
    """Update the policy on `samples`, as often as the settings have minibatches; `step` seeds their order.

    An update whose loss or gradient is not finite ends the step. Raises ValueError if no sample has a token to train.
    """
    watch = _Stopwatch()
    settings = learner.settings
    order = np.random.default_rng([settings.seed, step])
    plan = minibatches(samples, settings.minibatches, settings.resolved_normalization, order)
    packed = [learner.pack(minibatch) for minibatch in plan]
    watch.lap("packing")
    # The first one's own forward pass still has the weights of before the step.
    packed[1:] = [_with_proximal(learner, batches) for batches in packed[1:]]
    updates: list[Update] = []
    for batches in packed:
        # A GPU computes on its own: to read the loss waits for the pass, whose time would be the optimizer's else.
        float(learner.forward_backward(batches))
        watch.lap("forward_backward")
        updates.append(learner.optim_step())
        watch.lap("optimizer")
        if not updates[-1].applied:
            break
    return _report(updates, len(plan), watch)


def _with_proximal(learner: Learner, batches: Packed) -> Packed:
    """The micro-batches with the logprobs of their tokens under the weights before the step, unless they have them."""
    return [
        replace(batch, proximal_logprobs=learner.logprobs([batch])[0]) if batch.proximal_logprobs is None else batch
        for batch in batches
    ]


def _report(updates: list[Update], num_minibatches: int, watch: _Stopwatch) -> StepReport:
    """Means over the updates that were applied; if none was, the numbers of the one that was skipped."""
    applied = [update for update in updates if update.applied]
    reported = applied or updates
    return StepReport(
        loss=sum(update.loss for update in reported) / len(reported),
        grad_norm=max(update.grad_norm for update in reported),
        num_updates=len(applied),
        skipped=len(applied) < num_minibatches,
        metrics={
            "learning_rate": updates[0].learning_rate,
            UPDATES_SKIPPED: float(num_minibatches - len(applied)),
            **learning_metrics([update.totals for update in reported]),
        },
        seconds=watch.seconds,
    )
