"""What a producer exports to Prometheus."""

from prometheus_client import Counter, Gauge

SUBMITTED = Counter("rollstream_producer_prompts_submitted_total", "Prompts put on the topic, delivery confirmed")
OUTSTANDING = Gauge("rollstream_producer_outstanding_groups", "Own groups that are submitted and not closed")
SHARE = Gauge("rollstream_producer_credit_share_groups", "Most groups that may be outstanding")
SEQUENCE = Gauge("rollstream_producer_sequence", "Number of the next prompt in the producer's order")
FOREIGN = Counter(
    "rollstream_producer_strangers_prompts_total",
    "Prompts in this producer's name that its source does not give; they are passed over",
)
REFUSED = Counter(
    "rollstream_producer_refused_progress_total",
    "Records on `producers` that can't be true, compared with the log; they are passed over",
)
GHOSTS = Counter(
    "rollstream_producer_ghost_groups_total",
    "Open groups in this producer's record that nobody submitted; they use no credit",
)
INGESTED = Counter(
    "rollstream_producer_ingested_prompts_total",
    "Records of ingest-prompts, by what became of them: posed, a repeat of another, or a dead letter",
    ["outcome"],
)
FLAT = Gauge("rollstream_producer_flat_groups", "Own groups without spread since the last one that trained")
POOL_TASKS = Gauge("rollstream_producer_pool_tasks", "Tasks in each pool of the curriculum", ["pool"])
POOL_PROMPTS = Counter(
    "rollstream_producer_pool_prompts_total", "Prompts submitted, by the pool that their task was in", ["pool"]
)
