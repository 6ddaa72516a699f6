"""What the producer of feedback exports to Prometheus, beside what every producer does."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_MOST_OUTCOMES: Final = 60
_outcomes: set[str] = set()

READ = Counter("rollstream_feedback_read_total", "Records of `feedback` that were read")
MATCHED = Counter("rollstream_feedback_matched_total", "Feedback that found its answer")
UNMATCHED = Counter(
    "rollstream_feedback_unmatched_total",
    "Feedback given up, a dead letter each: no_answer and other_tenant at the end of the window, overflow before it",
    ["reason"],
)
IGNORED = Counter(
    "rollstream_feedback_ignored_total",
    "Feedback that changes no reward: other_metric, no_number, out_of_range, no_target, repeated, late, unreadable",
    ["reason"],
)
ANSWERS = Counter(
    "rollstream_feedback_answers_total",
    "Answers that are done with: trained, or why not, a reason of this producer's or of the trainer's",
    ["outcome"],
)
DELAY = Histogram(
    "rollstream_feedback_delay_seconds",
    "From an answer to the feedback on it, by the broker's clock",
    buckets=(1, 10, 60, 600, 3600, 6 * 3600, 86_400, 3 * 86_400, 7 * 86_400),
)
STORE_BYTES = Gauge("rollstream_feedback_store_bytes", "What the store takes on the disk")
STORE_LIMIT = Gauge("rollstream_feedback_store_limit_bytes", "Most that it may take")
BEHIND = Gauge("rollstream_feedback_behind_records", "Records of `feedback` and `serve-scored` that are not read yet")
WAITING = Gauge("rollstream_feedback_waiting_answers", "Answers that may train and wait for feedback")
SETTLED = Gauge("rollstream_feedback_settled_answers", "Answers with a reward that wait for room in the share")
PUBLISHED = Counter("rollstream_feedback_published_total", "Groups of one put on `scored`, delivery confirmed")
REBUILT = Counter("rollstream_feedback_store_rebuilt_total", "Stores that were begun anew, from the topics")


def bounded(outcome: str) -> str:
    """A reason out of the ledger as a label: beyond a number of them, all are the same."""
    if len(_outcomes) < _MOST_OUTCOMES and len(outcome) <= 40:
        _outcomes.add(outcome)
    return outcome if outcome in _outcomes else "other"
