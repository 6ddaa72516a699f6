"""Whether max_policy_lag leaves room for rollouts as long as this run's. Pure."""

from collections.abc import Sequence
from statistics import median

from rollstream.schemas.ledger import LedgerEntry


def narrow_lag_bound(steps: Sequence[LedgerEntry], max_policy_lag: int) -> str | None:
    """What to say where the slowest percent of rollouts outlives `max_policy_lag` optimizer steps; None if all is well.

    `steps`: the run's latest step entries, with their `rollout_seconds_p99` and `step_seconds`; the medians count.
    """
    pairs = [
        (step.metrics["rollout_seconds_p99"], step.metrics["step_seconds"])
        for step in steps
        if "rollout_seconds_p99" in step.metrics and step.metrics.get("step_seconds", 0.0) > 0
    ]
    if not pairs:
        return None
    rollout_seconds, step_seconds = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    needed = rollout_seconds / step_seconds
    if max_policy_lag >= needed:
        return None
    return (
        f"max_policy_lag {max_policy_lag} is below {needed:.1f}: the slowest percent of rollouts takes "
        f"{rollout_seconds:.1f} s, a step {step_seconds:.1f} s, so long samples are dropped as too_old; "
        "raise max_policy_lag, or bound the samples' length"
    )
