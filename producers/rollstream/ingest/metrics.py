"""What an ingest server exports to Prometheus, beside what every HTTP server does."""

from typing import Final

from prometheus_client import Counter

KINDS: Final = ("feedback", "prompt")
REASONS: Final = ("invalid", "too_many", "too_large", "not_allowed", "other_body", "unconfirmed")

ACCEPTED = Counter("rollstream_ingest_accepted_total", "Records that the broker confirmed, by kind", ["kind"])
REFUSED = Counter("rollstream_ingest_refused_total", "Requests that were not taken, by why", ["reason"])
REPEATED = Counter(
    "rollstream_ingest_repeated_total",
    "Entries that came again and were confirmed before, as Redis remembers: not written again",
    ["kind"],
)


def show_from_the_start() -> None:
    """Make the series that there can be: Prometheus sees no increase where a series begins."""
    for kind in KINDS:
        ACCEPTED.labels(kind=kind)
        REPEATED.labels(kind=kind)
    for reason in REASONS:
        REFUSED.labels(reason=reason)
