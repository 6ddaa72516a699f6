"""The Prometheus metrics of a generator's HTTP endpoint, beside those of `rollstream.http`."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

WAITING = Gauge("rollstream_serve_waiting_calls", "Choices of clients' calls that wait for a place in the engine")
RUNNING = Gauge("rollstream_serve_running_calls", "Choices of clients' calls that the engine answers")
TAKEN_BACK = Counter(
    "rollstream_serve_taken_back_total", "Choices that were asked again, since an update came before their first token"
)
TIME_TO_FIRST_TOKEN = Histogram(
    "rollstream_serve_time_to_first_token_seconds",
    "From a call, read and rendered, to the first token of its first choice, with the wait for a place",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
TIME_PER_TOKEN = Histogram(
    "rollstream_serve_time_per_token_seconds",
    "Of each choice: from its first token to its last, divided by the tokens after the first",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)

OUTCOMES: Final = ("recorded", "text", "dropped", "unrecorded")
ANSWERS = Counter(
    "rollstream_serve_answers_total",
    "Choices that were answered, by what was recorded: all (recorded), the text alone (text), nothing as the hook said "
    "(dropped), nothing since it could not be (unrecorded)",
    ["outcome"],
)
MAY_TRAIN = Counter(
    "rollstream_serve_may_train_total", "Recorded choices that may train: with consent, plain, with tokens"
)
HOOK_FAILURES = Counter("rollstream_serve_hook_failures_total", "Records on which the hook raised")
SPOOL_BYTES = Gauge("rollstream_serve_spool_bytes", "Bytes of the file of answers that are not on Kafka yet")
SPOOL_LIMIT = Gauge("rollstream_serve_spool_limit_bytes", "Most bytes of that file")
SPOOL_RECORDS = Gauge("rollstream_serve_spool_records", "Answers that are not on Kafka yet")
SPOOL_OLDEST = Gauge(
    "rollstream_serve_spool_oldest_timestamp_seconds", "When the oldest of them was recorded, Unix time; 0 if none is"
)
SPOOL_DAMAGED = Counter("rollstream_serve_spool_damaged_total", "Damaged spools that were moved aside")
PUBLISHED = Counter("rollstream_serve_published_total", "Answers of the spool that are on Kafka")
READY = Gauge("rollstream_serve_ready", "1 while clients can be answered, else 0")
LANE_RESTARTS = Counter(
    "rollstream_serve_training_lane_restarts_total", "Times that the training lane was made anew beside clients"
)

# From the start on: Prometheus sees no increase where a series begins.
for _outcome in OUTCOMES:
    ANSWERS.labels(outcome=_outcome)
