"""Spans of records, as the stages see them. Nothing of OpenTelemetry is imported here.

A span's context goes into the headers of the records that it causes (`context.py`), so the next stage's span is its
child. Where spans are off, or a trace is not sampled, records carry on the context that they came with: the trace of
whoever submitted a prompt is not cut. `begin.py` turns tracing on, `export.py` exports.

Names and attributes follow OpenTelemetry's conventions for messaging and, where they have not changed for long, for
generative AI. No attribute holds a text of a prompt, an answer or an error.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol

from prometheus_client import Counter

from rollstream.process.tracing.context import TraceContext, TraceHeaders

# Without an endpoint they stay at zero.
EXPORTED: Final = Counter("rollstream_tracing_exported_spans_total", "Spans that the collector took")
DROPPED: Final = Counter(
    "rollstream_tracing_dropped_spans_total",
    "Spans that no collector got: queue_full, rate (above max_spans_per_second), failed (it did not take them), "
    "shutdown (the process ended first)",
    ["reason"],
)
GROUP_ID: Final = "rollstream.group_id"
ROLLOUT_ID: Final = "rollstream.rollout_id"
WEIGHT_VERSION: Final = "rollstream.weight_version"
MAX_LINKS: Final = 1024
"""Most links of one span; of those beyond, OpenTelemetry counts how many they were."""

Kind = Literal["producer", "consumer", "internal"]
Attributes = Mapping[str, str | int | float | Sequence[str]]


class Span(Protocol):
    """The work on one record, or of one step. It must be ended once."""

    @property
    def is_recorded(self) -> bool:
        """Whether it is exported; if not, attributes need not be made."""

    @property
    def context(self) -> TraceContext | None:
        """What spans of later stages are children of."""

    @property
    def headers(self) -> TraceHeaders:
        """The headers of the records that it causes."""

    @property
    def log_keys(self) -> Mapping[str, str]:
        """`trace_id` and `span_id` for log lines about it; empty without tracing."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def fail(self, error_type: str) -> None:
        """Note that the work failed, and the kind of error: of few values, without any text of a record."""

    def end(self, at: datetime | None = None) -> None:
        """End it, now or `at` a moment in the past."""


class Tracing(Protocol):
    """Starts spans. Thread-safe; never blocks and never raises."""

    @property
    def is_on(self) -> bool:
        """Whether there is an endpoint."""

    def start(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
        started_at: datetime | None = None,
        is_always_sampled: bool = False,
    ) -> Span:
        """Start a span; without a parent it begins a trace. Of more than `MAX_LINKS` links the last are kept."""

    def samples(self, context: TraceContext) -> bool:
        """Whether the spans of this trace are exported: here and, with the same settings, in every stage."""


class PassedOn:
    """A span that is not exported: it only passes a context on."""

    is_recorded = False

    def __init__(self, context: TraceContext | None = None, log_keys: Mapping[str, str] | None = None) -> None:
        self.context = context
        self.headers: TraceHeaders = () if context is None else context.headers
        self.log_keys: Mapping[str, str] = log_keys or {}

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def fail(self, error_type: str) -> None:
        """Nothing."""

    def end(self, at: datetime | None = None) -> None:
        """Nothing."""


_NO_CONTEXT: Final = PassedOn()


class _Off:
    """Tracing without an endpoint: each span passes its parent on."""

    is_on = False

    def start(self, name: str, kind: Kind = "internal", *, parent: TraceContext | None = None, **_: object) -> Span:
        return _NO_CONTEXT if parent is None else PassedOn(parent)

    def samples(self, context: TraceContext) -> bool:
        return False


OFF: Final[Tracing] = _Off()
