"""What a trainer exports to Prometheus: numbers of the newest step as gauges, sums since the start as counters."""

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from rollstream.history.milestones import Milestones
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ledger import (
    MISSING_RATIO,
    MOST_REWARD_COMPONENTS,
    TRAINED_AT_LAG,
    EntryKind,
    GroupOutcome,
    LedgerEntry,
)
from rollstream.schemas.ledger import REWARD_COMPONENT as COMPONENT_PREFIX
from rollstream.trainer.intake.groups import DropReason


class LagHistogram(Collector):
    """Trained tokens by policy lag. The library's own histogram takes one value at a time; here are many tokens."""

    bounds: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._name, self._documentation = name, documentation
        self._tokens: Counts[int] = Counts()
        registry.register(self)

    def add(self, lag: int, num_tokens: float) -> None:
        """Count tokens of this policy lag, in optimizer steps."""
        self._tokens[lag] += int(num_tokens)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        tokens = dict(self._tokens)
        counts = [0] * (len(self.bounds) + 1)
        for lag, number in tokens.items():
            counts[sum(bound < lag for bound in self.bounds)] += number
        labels = [*(f"{bound:.1f}" for bound in self.bounds), "+Inf"]
        total = sum(lag * number for lag, number in tokens.items())
        buckets = list(zip(labels, map(float, accumulate(counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


ENTRIES: Final = Counter("rollstream_trainer_ledger_entries_total", "Committed ledger entries", ["kind"])
GROUPS: Final = Counter("rollstream_trainer_groups_total", "Groups closed; the reason of trained ones is empty",
                        ["outcome", "reason"])  # fmt: skip
TRAINED_TOKENS: Final = Counter("rollstream_trainer_trained_tokens_total", "Tokens in the loss of committed steps")
GENERATED_TOKENS: Final = Counter("rollstream_trainer_generated_tokens_total", "Sampled tokens of closed groups")
INTERRUPTIONS: Final = Counter(
    "rollstream_trainer_interruptions_total",
    "Restarts and rollbacks on the ledger, from the run's beginning on; a trainer that ends in order may leave a "
    "restart too",
    ["kind"],
)
DUPLICATES: Final = Counter("rollstream_trainer_duplicate_records_total", "Records that changed nothing")
UNREADABLE_PROMPTS: Final = Counter("rollstream_trainer_unreadable_prompts_total", "Prompts passed over")
OPEN_GROUPS: Final = Gauge("rollstream_trainer_open_groups", "Groups that are not closed")
READY_GROUPS: Final = Gauge(
    "rollstream_trainer_ready_groups", "Groups that a step may take; ones_per_group groups of one are one"
)
INCOMPLETE_BYTES: Final = Gauge("rollstream_trainer_incomplete_bytes", "Samples of incomplete groups")
WEIGHT_VERSION: Final = Gauge("rollstream_trainer_weight_version", "Newest published version")
STEP: Final = Gauge("rollstream_trainer_step", "Optimizer steps on the surviving branch")
LAST_STEP: Final = Gauge(
    "rollstream_trainer_last_step_timestamp_seconds", "When the run's newest step was committed, Unix time; 0 if none"
)
LAST_CHECKPOINT: Final = Gauge(
    "rollstream_trainer_last_checkpoint_timestamp_seconds",
    "When the run's newest checkpoint was committed, Unix time; 0 if none",
)
TOPIC_RECORDS: Final = Gauge(
    "rollstream_trainer_topic_records", "End minus start of the partitions; ends of transactions count", ["topic"]
)
GROUP_AGE: Final = Histogram(
    "rollstream_trainer_group_age_seconds",
    "Of a trained group, from the submission of its prompt to the end of the step",
    buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10800, 43200),
)
TRAINED_LAG: Final = LagHistogram("rollstream_trainer_token_policy_lag_steps", "Policy lag of each trained token")
_SINCE: Final = "all groups that closed since the step before, trained or dropped"
REWARD_COMPONENT: Final = Gauge(
    "rollstream_trainer_reward_component",
    f"Mean of one reward function over the completed samples of {_SINCE}",
    ["component"],
)
MISSING: Final = Gauge(
    "rollstream_trainer_missing_ratio",
    f"Samples without a reward among those of {_SINCE}, by their failure; lost: they never came. Prompts that are not "
    "for training aside",
    ["code"],
)

_MISSING_CODES: Final = (*(code.value for code in FailureCode), DropReason.LOST.value)
_components: Final[set[str]] = set()
"""Reward functions that are exported; each stays a series for as long as the process lives."""
_STEP_GAUGES: Final = {
    name: Gauge(f"rollstream_trainer_{name}", description)
    for name, description in {
        "loss": "Mean over the step's updates",
        "grad_norm": "Before clipping",
        "learning_rate": "Of the step",
        "entropy": "Of the policy on the trained tokens, nats",
        "clip_fraction_low": "Tokens clipped below",
        "clip_fraction_high": "Tokens clipped above",
        "importance_weight_mean": "Proximal / behavior, as corrected",
        "importance_weight_max": "Proximal / behavior, as corrected",
        "importance_weight_capped_ratio": "Tokens whose weight was capped",
        "importance_weight_masked_ratio": "Tokens whose weight was out of bounds, so that they left the loss",
        "effective_sample_size_ratio": "Of the importance weights",
        "mismatch_kl_lag_0": "Mismatch KL of samples at policy lag 0",
        "mismatch_kl_lagged": "Mismatch KL of samples at policy lag above 0",
        "kl": "KL divergence of the policy from the reference model, 0 without one; estimator k3",
        "entropy_bonus": "What the bonus takes off the loss of an update, 0 without one",
        "reward_mean": f"Over the completed samples of {_SINCE}",
        "completion_tokens_mean": f"Over the completed samples of {_SINCE}",
        "rollout_seconds_p99": f"Time to generate, 99th percentile over the completed samples of {_SINCE}, "
        "answers to clients aside",
        "truncated_ratio": f"Those that hit the length limit among the completed samples of {_SINCE}",
        "zero_std_ratio": f"Those without spread among {_SINCE}; prompts that are not for training aside",
        "dropped_ratio": f"Those not trained on among {_SINCE}; prompts that are not for training aside",
        "policy_lag_mean": "Of the trained samples, answers to clients aside, optimizer steps",
        "policy_lag_max": "Of the trained samples, answers to clients aside, optimizer steps",
        "served_policy_lag_mean": "Of the trained answers to clients, optimizer steps; of the newest step with any",
        "served_policy_lag_max": "Of the trained answers to clients, optimizer steps; of the newest step with any",
        "served_ratio": "Answers to clients among the trained samples",
        "ones_reward_mean": "Of the trained groups of one; of the newest step with any",
        "generated_tokens_per_second": f"In completed samples of {_SINCE}, by the wall time since then",
        "trained_tokens_per_second": "Of wall time",
        "step_seconds": "Wall time since the step before",
        "waiting_seconds": "Of the step, spent without a record to read",
        "assembling_seconds": "Of the step, decoding and admitting",
        "waiting_for_late_seconds": "Of the step, due and held back for groups that it would have made too old",
        "packing_seconds": "Of the step",
        "forward_backward_seconds": "Of the step, with the forward pass of a reference model",
        "optimizer_seconds": "Of the step",
        "publishing_seconds": "Weights, checkpoint and transaction of the step before",
    }.items()
}


def begin(run: Milestones) -> None:
    """Go on from what the trainers before this one left on the ledger.

    Until then no count of interruptions is exported: after one of 0, all of them would look new.
    """
    INTERRUPTIONS.labels(EntryKind.RESTART.value).inc(run.restarts)
    INTERRUPTIONS.labels(EntryKind.ROLLBACK.value).inc(run.rollbacks)
    for gauge, moment in ((LAST_STEP, run.last_step_at), (LAST_CHECKPOINT, run.last_checkpoint_at)):
        gauge.set(moment.timestamp() if moment else 0.0)


def export(entry: LedgerEntry) -> None:
    """Set and add up what a committed entry says."""
    ENTRIES.labels(entry.kind.value).inc()
    if entry.kind is EntryKind.RESTART:
        INTERRUPTIONS.labels(entry.kind.value).inc()
    if entry.kind is EntryKind.STEP:
        LAST_STEP.set(entry.finished_at.timestamp())
    if entry.checkpoint is not None:
        LAST_CHECKPOINT.set(entry.finished_at.timestamp())
    for group in entry.closed:
        GROUPS.labels(group.outcome.value, "" if group.outcome is GroupOutcome.TRAINED else group.reason).inc()
    WEIGHT_VERSION.set(entry.weight_version)
    STEP.set(entry.step)
    TRAINED_TOKENS.inc(entry.metrics.get("trained_tokens", 0.0))
    GENERATED_TOKENS.inc(entry.metrics.get("generated_tokens", 0.0))
    if entry.kind is EntryKind.STEP:
        _export_step(entry.metrics)


def note_ages(submitted: Iterable[datetime], ended: datetime) -> None:
    """Count the ages of the groups of a step. Clocks of machines differ, so an age may come out below 0: it is 0."""
    for moment in submitted:
        GROUP_AGE.observe(max(0.0, (ended - moment).total_seconds()))


def _export_step(values: Mapping[str, float]) -> None:
    for code in _MISSING_CODES:
        MISSING.labels(code).set(values.get(f"{MISSING_RATIO}{code}", 0.0))
    for name, value in values.items():
        if name in _STEP_GAUGES:
            _STEP_GAUGES[name].set(value)
        elif name.startswith(TRAINED_AT_LAG):
            TRAINED_LAG.add(int(name.removeprefix(TRAINED_AT_LAG)), value)
        elif name.startswith(COMPONENT_PREFIX):
            _export_component(name.removeprefix(COMPONENT_PREFIX), value)


def _export_component(name: str, value: float) -> None:
    if len(_components) < MOST_REWARD_COMPONENTS:
        _components.add(name)
    if name in _components:
        REWARD_COMPONENT.labels(name).set(value)
