"""What a continuous collection exports to Prometheus."""

from prometheus_client import Counter, Gauge

TAKEN = Counter("rollstream_collect_taken_rows_total", "Rows that were taken into a part, none of them twice")
BAD = Counter("rollstream_collect_bad_rows_total", "Rows that can't be asked; they are listed beside the part")
WRITTEN = Counter(
    "rollstream_collect_written_rollouts_total", "Rollouts with a response, counted when their part was asked"
)
FAILURES = Counter(
    "rollstream_collect_failures_total",
    "Samples without a response or without a reward, by why, counted when their part was asked",
    ["code"],
)
PARTS = Counter("rollstream_collect_finished_parts_total", "Parts of which nothing is left to ask")
OPEN_PARTS = Gauge("rollstream_collect_open_parts", "Parts whose samples are asked now, or again at the next look")
LAST_LOOK = Gauge(
    "rollstream_collect_last_look_timestamp_seconds",
    "When a look at the source last ended, Unix time; after a restart, when the last one began; 0 if there was none",
)
