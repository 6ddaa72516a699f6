"""What a ledger entry reports of the groups that it closes and of the step that it commits. Pure.

Names as in TRL and verl; ratios lie in [0, 1]. What a step reports of its learning is in `learning/step_metrics.py`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from rollstream.schemas.ledger import TRAINED_AT_LAG
from rollstream.schemas.record import utc_now
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup, DropReason
from rollstream.trainer.learning.advantages import has_spread
from rollstream.trainer.learning.backends.protocol import StepReport
from rollstream.trainer.learning.samples import is_truncated


@dataclass(slots=True)
class StepClock:
    """Wall time since the training of the step before ended, that step's publishing included, and how it was spent."""

    started_at: datetime = field(default_factory=utc_now)
    waiting_seconds: float = 0.0
    """Blocked without a record to read."""
    assembling_seconds: float = 0.0
    """Decoding, assembling, admitting."""
    late_seconds: float = 0.0
    """A step was due and waited for groups that it would have made too old; reading went on."""
    _began: float = field(default_factory=time.perf_counter)

    @property
    def wall_seconds(self) -> float:
        """Since the step before ended training."""
        return time.perf_counter() - self._began


def metrics_of_drops(drops: Sequence[DroppedGroup]) -> dict[str, float]:
    """The metrics of an entry that only closes groups."""
    scored = [sample.scored for drop in drops for sample in drop.group.samples.values()]
    return {**rollout_metrics(scored), **group_metrics(0, _by_reason(drops))}


def metrics_of_step(
    batch: Sequence[Admitted],
    drops: Sequence[DroppedGroup],
    report: StepReport,
    clock: StepClock,
    *,
    publishing_seconds: float,
) -> dict[str, float]:
    """The metrics of one optimizer step.

    `publishing_seconds` are those of the step before: this step is not published yet.
    """
    groups = [*(admitted.group for admitted in batch), *(drop.group for drop in drops)]
    rollouts = rollout_metrics(sample.scored for group in groups for sample in group.samples.values())
    seconds: Mapping[str, float] = {
        "waiting": clock.waiting_seconds,
        "assembling": clock.assembling_seconds,
        "waiting_for_late": clock.late_seconds,
        **report.seconds,
        "publishing": publishing_seconds,
    }
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        **report.metrics,
        **rollouts,
        **group_metrics(len(batch), _by_reason(drops), num_flat=sum(map(_is_flat, batch))),
        **lag_metrics([sample.policy_lag for admitted in batch for sample in admitted.training]),
        **throughput_metrics(
            generated_tokens=rollouts.get("generated_tokens", 0.0),
            trained_tokens=report.metrics.get("trained_tokens", 0.0),
            wall_seconds=clock.wall_seconds,
            seconds=seconds,
        ),
    }


def rollout_metrics(scored: Iterable[RolloutScored]) -> dict[str, float]:
    """Rewards, completion lengths and times over every completed sample of the groups that the step closes.

    Dropped groups are part of it: a mean over trained groups alone is biased, since groups without spread are missing.
    """
    completed = [sample for sample in scored if sample.scoring.reward is not None]
    if not completed:
        return {}
    rewards = np.array([sample.scoring.reward for sample in completed], dtype=np.float64)
    lengths = np.array([sample.rollout.num_completion_tokens for sample in completed], dtype=np.float64)
    seconds = [(sample.rollout.finished_at - sample.rollout.started_at).total_seconds() for sample in completed]
    components: dict[str, list[float]] = {}
    for sample in completed:
        for name, value in sample.scoring.components.items():
            components.setdefault(name, []).append(value)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "completion_tokens_mean": float(lengths.mean()),
        "completion_tokens_max": float(lengths.max()),
        "generated_tokens": float(lengths.sum()),
        "rollout_seconds_p99": float(np.quantile(seconds, 0.99)),
        "truncated_ratio": float(np.mean([is_truncated(sample.rollout) for sample in completed])),
        **{f"reward_component/{name}": float(np.mean(values)) for name, values in components.items()},
    }


def group_metrics(num_trained: int, dropped: Mapping[str, int], *, num_flat: int = 0) -> dict[str, float]:
    """Counts of the groups that the step closes; `dropped`: reason → number of groups.

    `num_flat`: how many of the trained ones have no spread.
    """
    num_dropped = sum(dropped.values())
    num_closed = max(1, num_trained + num_dropped)
    return {
        "groups_trained": float(num_trained),
        "groups_dropped": float(num_dropped),
        "dropped_ratio": num_dropped / num_closed,
        "zero_std_ratio": (num_flat + dropped.get(DropReason.NO_SPREAD.value, 0)) / num_closed,
        **{f"groups_dropped/{reason}": float(count) for reason, count in dropped.items()},
    }


def lag_metrics(policy_lags: Sequence[int]) -> dict[str, float]:
    """Policy lag of the samples that the step trains on."""
    if not policy_lags:
        return {}
    return {"policy_lag_mean": float(np.mean(policy_lags)), "policy_lag_max": float(max(policy_lags))}


def tokens_by_lag(batch: Sequence[Admitted], lag: Callable[[int], int | None]) -> dict[str, float]:
    """Tokens that the step trained on by the policy lag of the weights that sampled them; `lag`: version → steps."""
    counts: Counter[int] = Counter()
    pairs = (pair for admitted in batch for pair in zip(admitted.scored, admitted.training, strict=True))
    for placed, sample in pairs:
        turns = placed.scored.rollout.turns
        if len(turns) == 1 and len(turns[0].weight_spans) == 1:
            counts[sample.policy_lag] += sample.num_trained_tokens
            continue
        begins = 0
        for index, turn in enumerate(turns):
            begins += len(turn.prompt_token_ids) if index else 0
            for span in turn.weight_spans:
                trained = sample.loss_mask[begins + span.start : begins + span.end]
                counts[lag(span.weight_version) or 0] += int(trained.sum())
            begins += len(turn.token_ids)
    return {f"{TRAINED_AT_LAG}{steps}": float(number) for steps, number in sorted(counts.items()) if number}


def throughput_metrics(
    *, generated_tokens: float, trained_tokens: float, wall_seconds: float, seconds: Mapping[str, float]
) -> dict[str, float]:
    """Tokens per second of wall time, and the seconds of each phase.

    `seconds`: waiting, assembling, waiting_for_late, packing, forward_backward, optimizer, publishing.
    """
    wall = max(wall_seconds, 1e-9)
    return {
        "step_seconds": wall_seconds,
        "generated_tokens_per_second": generated_tokens / wall,
        "trained_tokens_per_second": trained_tokens / wall,
        **{f"{phase}_seconds": value for phase, value in seconds.items()},
    }


def _is_flat(admitted: Admitted) -> bool:
    return not has_spread([sample.reward for sample in admitted.training if sample.loss_mask.any()])


def _by_reason(drops: Sequence[DroppedGroup]) -> Counter[str]:
    return Counter(drop.reason.value for drop in drops)
