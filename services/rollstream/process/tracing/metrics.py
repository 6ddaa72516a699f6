"""The metrics of tracing. Without an endpoint they stay at zero."""

from typing import Final

from prometheus_client import Counter

EXPORTED: Final = Counter("rollstream_tracing_exported_spans_total", "Spans that the collector took")
DROPPED: Final = Counter(
    "rollstream_tracing_dropped_spans_total",
    "Spans that no collector got: queue_full, rate (above max_spans_per_second), failed (it did not take them), "
    "shutdown (the process ended first)",
    ["reason"],
)
