"""The Prometheus metrics of a scorer."""

from prometheus_client import Counter, Histogram

ROLLOUTS = Counter("rollstream_scorer_rollouts_total", "Rollouts, by how scoring them ended", ["topic", "status"])
FAILURES = Counter("rollstream_scorer_failures_total", "Rollouts without a reward, by why", ["code"])
REWARDS_AT_TIMEOUT = Counter(
    "rollstream_scorer_rewards_at_timeout_total",
    "Rollouts whose scoring took too long, with the reward of the settings",
)
BATCH = Histogram(
    "rollstream_scorer_batch_seconds",
    "From taking a batch to the broker's confirmation of all its results",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60),
)
BATCH_SIZE = Histogram(
    "rollstream_scorer_batch_rollouts", "Rollouts in a batch", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
)
