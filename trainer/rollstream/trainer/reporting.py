"""What a ledger entry reports of the groups that it closes and of the step that it commits. Pure."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rollstream.schemas.record import utc_now
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup, DropReason
from rollstream.trainer.learning.backends.protocol import StepReport
from rollstream.trainer.learning.step_metrics import group_metrics, lag_metrics, rollout_metrics, throughput_metrics


@dataclass(slots=True)
class StepClock:
    """Wall time since the step before ended training, its publishing included, and what it went into."""

    started_at: datetime = field(default_factory=utc_now)
    waiting_seconds: float = 0.0
    """Blocked without a record to read."""
    assembling_seconds: float = 0.0
    """Decoding, assembling, admitting."""
    _began: float = field(default_factory=time.perf_counter)

    @property
    def wall_seconds(self) -> float:
        """Since the step before ended training."""
        return time.perf_counter() - self._began


def metrics_of_drops(drops: Sequence[DroppedGroup]) -> dict[str, float]:
    """Of an entry that only closes groups."""
    scored = [sample.scored for drop in drops for sample in drop.group.samples.values()]
    return {**rollout_metrics(scored), **_group_counts(0, drops)}


def metrics_of_step(
    batch: Sequence[Admitted],
    drops: Sequence[DroppedGroup],
    report: StepReport,
    clock: StepClock,
    *,
    publishing_seconds: float,
) -> dict[str, float]:
    """Of one optimizer step; `publishing_seconds` are those of the step before, since this one isn't published yet."""
    groups = [*(admitted.group for admitted in batch), *(drop.group for drop in drops)]
    rollouts = rollout_metrics(sample.scored for group in groups for sample in group.samples.values())
    seconds: Mapping[str, float] = {
        "waiting": clock.waiting_seconds,
        "assembling": clock.assembling_seconds,
        **report.seconds,
        "publishing": publishing_seconds,
    }
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        **report.metrics,
        **rollouts,
        **_group_counts(len(batch), drops),
        **lag_metrics([sample.policy_lag for admitted in batch for sample in admitted.training]),
        **throughput_metrics(
            generated_tokens=rollouts.get("generated_tokens", 0.0),
            trained_tokens=report.metrics.get("trained_tokens", 0.0),
            wall_seconds=clock.wall_seconds,
            seconds=seconds,
        ),
    }


def _group_counts(num_trained: int, drops: Sequence[DroppedGroup]) -> dict[str, float]:
    reasons = Counter(drop.reason.value for drop in drops)
    return group_metrics(num_trained, reasons, no_spread_reason=DropReason.NO_SPREAD.value)
