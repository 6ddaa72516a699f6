"""The Prometheus metrics of a generator."""

from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from rollstream.agents.journal import WentOn
from rollstream.agents.session import BeganAnew
from rollstream.schemas.progress import ProgressKind
from rollstream.schemas.rollout import Status
from rollstream.schemas.weights import ApplyOutcome

SAMPLES = Counter("rollstream_generator_samples_total", "Samples that ended", ["status"])
FAILURES = Counter("rollstream_generator_failures_total", "Samples that did not complete, by why", ["code"])
TOKENS = Counter("rollstream_generator_completion_tokens_total", "Tokens sampled")
DEADLINE_CUTS = Counter("rollstream_generator_deadline_cuts_total", "Samples that ended as truncated at their deadline")
ENGINE_ERRORS = Counter("rollstream_generator_engine_errors_total", "Model calls that the engine did not resolve")
BEGAN_ANEW = Counter(
    "rollstream_generator_turns_begun_anew_total",
    "Turns that do not go on from sampled tokens and begin a training sample, by why",
    ["reason"],
)
PROGRESS = Counter(
    "rollstream_generator_progress_total",
    "Records of how far samples have come, by kind; too_large: not kept",
    ["kind"],
)
RESUMED = Counter(
    "rollstream_generator_resumed_samples_total",
    "Samples that another process had begun, by what became of it",
    ["outcome"],
)
GIVEN_BACK_TOKENS = Counter(
    "rollstream_generator_given_back_tokens_total", "Tokens of samples that another process had sampled already"
)
WEIGHT_VERSION = Gauge("rollstream_generator_weight_version", "Version that generates now")
POLICY_LAG = Gauge("rollstream_generator_policy_lag_steps", "Optimizer steps behind the newest published version")
MAX_POLICY_LAG = Gauge(
    "rollstream_generator_max_policy_lag_steps", "Optimizer steps behind, above which it takes no prompts"
)
TRAINING_LANE_READY = Gauge(
    "rollstream_generator_training_lane_ready", "1 while every part that takes prompts is ready and goes on, else 0"
)
STALE_SINCE = Gauge(
    "rollstream_generator_stale_since_timestamp_seconds",
    "When the first version was published that is newer than the one that generates, Unix time; 0 if none is",
)
LOADS = Counter("rollstream_generator_weight_loads_total", "Versions seen, by how loading them ended", ["outcome"])
LOAD = Histogram(
    "rollstream_generator_weight_load_seconds",
    "From a new version's turn to generation with it: fetch and check its files, load them",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
STALL = Histogram(
    "rollstream_generator_weight_stall_seconds",
    "How long generation stood still for an update",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

# All that there can be, from the start on: Prometheus sees no increase where a series begins.
for _status in (Status.COMPLETED, Status.FAILED, Status.UNRESOLVED):
    SAMPLES.labels(status=_status.value)
for _reason in get_args(BeganAnew):
    BEGAN_ANEW.labels(reason=_reason)
for _kind in (*ProgressKind, "too_large"):
    if _kind != ProgressKind.UNKNOWN:
        PROGRESS.labels(kind=_kind)
for _resumed in get_args(WentOn):
    RESUMED.labels(outcome=_resumed)
for _outcome in (ApplyOutcome.APPLIED, ApplyOutcome.FAILED, ApplyOutcome.SKIPPED):
    LOADS.labels(outcome=_outcome.value)


def num_tokens() -> float:
    """Tokens sampled since the process started."""
    return float(next(iter(TOKENS.collect())).samples[0].value)
