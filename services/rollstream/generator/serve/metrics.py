"""The Prometheus metrics of a generator's HTTP endpoint, beside those of `rollstream.http`."""

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
