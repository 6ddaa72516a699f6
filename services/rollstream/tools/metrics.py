"""The Prometheus metrics of tools, by the set that the settings declare; never by what a model or a server says."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

CALLS: Final = Counter(
    "rollstream_tools_calls_total",
    "Calls of tools, by how they ended: answered; mistake, of the model or the tool, which the model is told; failed: "
    "nothing says what became of it",
    ["tools", "outcome"],
)
CALL: Final = Histogram(
    "rollstream_tools_call_seconds",
    "How long calls of tools took, with their repetitions",
    ["tools"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
OPEN: Final = Gauge("rollstream_tools_open_sessions", "Sessions of tools that are open now", ["tools"])
SESSIONS: Final = Counter(
    "rollstream_tools_sessions_total",
    "Sessions of tools, by how they ended: closed; left to another process; failed: their server may hold them "
    "still; not_opened",
    ["tools", "outcome"],
)


def show(tools: str) -> None:
    """Have the series of a set from the start on: Prometheus sees no increase where a series begins."""
    for outcome in ("answered", "mistake", "failed"):
        CALLS.labels(tools, outcome)
    for outcome in ("closed", "left", "failed", "not_opened"):
        SESSIONS.labels(tools, outcome)
    CALL.labels(tools)
    OPEN.labels(tools)
