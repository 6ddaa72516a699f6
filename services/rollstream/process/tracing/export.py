"""Exports the spans of this process by OTLP over HTTP. The only module that imports OpenTelemetry.

A stage never waits for it. Ended spans go into a queue with a bound, and one thread of the SDK sends them in batches.
What is beyond the queue, beyond the rate, or not taken by the collector is dropped, counted by reason, and said in one
warning a minute. Sampling goes by the trace id and our own ratio, so no header of a stranger raises it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, Sampler, TraceIdRatioBased

from rollstream.process.tracing.context import TraceContext, TraceHeaders, log_keys
from rollstream.process.tracing.settings import TracingSettings
from rollstream.process.tracing.spans import DROPPED, EXPORTED, MAX_LINKS, Attributes, Kind, PassedOn, Span

_LOG = logging.getLogger(__name__)

_WARN_EVERY_SECONDS: Final = 60.0
_SEND_EVERY_SECONDS: Final = 1.0
_MOST_AT_ONCE: Final = 512
# Ids and keys come from records.
_LIMITS: Final = SpanLimits(
    max_span_attributes=64, max_span_attribute_length=256, max_links=MAX_LINKS, max_link_attributes=0, max_events=0
)
_KINDS: Final[dict[Kind, trace.SpanKind]] = {
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "internal": trace.SpanKind.INTERNAL,
}


class Exporting:
    """A `Tracing` with an endpoint."""

    is_on = True

    def __init__(self, settings: TracingSettings, *, service: str, run: str, instance: str) -> None:
        # The SDK's own lines repeat themselves, and say less than ours.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create({"service.name": service, "service.namespace": run, "service.instance.id": instance})
        self._queue = _Queue(settings, Drops())
        self._ratio = TraceIdRatioBased(settings.sample_ratio)
        self._by_trace_id = _tracer(self._ratio, resource, self._queue)
        self._always = _tracer(ALWAYS_ON, resource, self._queue)

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
        tracer = self._always if is_always_sampled else self._by_trace_id
        span = tracer.start_span(
            name,
            # Without a context of its own the SDK would look for the span of whoever calls.
            context=trace.set_span_in_context(_remote(parent), Context()),
            kind=_KINDS[kind],
            links=[trace.Link(_span_context(link)) for link in links],
            start_time=_nanoseconds(started_at),
        )
        context = parent if parent is not None and not span.is_recording() else _context_of(span)
        if context is None:  # the SDK is disabled by OTEL_SDK_DISABLED
            return PassedOn(parent)
        return _Recorded(span, context) if span.is_recording() else PassedOn(context, log_keys(context))

    def close(self, seconds: float) -> None:
        """Export the last spans, for so long at most; what is left is dropped."""
        self._queue.close(seconds)

    def samples(self, context: TraceContext) -> bool:
        return self._ratio.should_sample(None, context.trace_id, "").decision is Decision.RECORD_AND_SAMPLE


class _Recorded:
    """A span that is exported."""

    is_recorded = True

    def __init__(self, span: trace.Span, context: TraceContext) -> None:
        self._span = span
        self.context: TraceContext | None = context
        self.log_keys = log_keys(context)
        self.headers: TraceHeaders = context.headers

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, error_type: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR)
        self._span.set_attribute("error.type", error_type)

    def end(self, at: datetime | None = None) -> None:
        self._span.end(_nanoseconds(at))


class Drops:
    """Counts dropped spans, and warns of them once a minute. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unsaid: Counter[str] = Counter()
        self._quiet_until = clock()

    def count(self, reason: str, number: int, why: str = "") -> None:
        """Note that so many spans were dropped; `why` says more, without anything secret."""
        if number <= 0:
            return
        DROPPED.labels(reason).inc(number)
        with self._lock:
            self._unsaid[reason] += number
            if self._clock() < self._quiet_until:
                return
            self._quiet_until = self._clock() + _WARN_EVERY_SECONDS
            counts, self._unsaid = self._unsaid, Counter()
        reasons = ", ".join(f"{name} {count}" for name, count in counts.items())
        _LOG.warning("spans were dropped since the last such line: %s%s", reasons, f" ({why})" if why else "")


class _Queue(SpanProcessor):
    """Takes ended spans while there is room, and not too many a second. `BatchSpanProcessor` sends them."""

    def __init__(self, settings: TracingSettings, drops: Drops) -> None:
        self._drops = drops
        self._lock = threading.Lock()
        self._room = settings.max_queued_spans
        self._rate = float(settings.max_spans_per_second)
        self._allowed, self._allowed_at = self._rate, time.monotonic()
        self._is_closed = False
        self._bound = settings.max_queued_spans
        self._exporter = _Exporter(settings, drops, self._leave)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.max_queued_spans,
            schedule_delay_millis=_SEND_EVERY_SECONDS * 1000,
            max_export_batch_size=min(_MOST_AT_ONCE, settings.max_queued_spans),
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Called by the SDK, in the thread that ended the span."""
        with self._lock:
            refused = self._refused()
        if refused:
            self._drops.count(refused, 1)
        else:
            self._batches.on_end(span)

    def close(self, seconds: float) -> None:
        """Send what is here. The SDK's own end may take as long as a request, so a thread that may be left does it."""
        with self._lock:
            self._is_closed = True
        ending = threading.Thread(target=self._batches.shutdown, name="spans-ending", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            self._exporter.abandon()
            self._drops.count("shutdown", self._bound - self._room)

    def _refused(self) -> str:
        """Why a span is dropped; else it has its place now, and the answer is empty."""
        now = time.monotonic()
        self._allowed = min(self._rate, self._allowed + (now - self._allowed_at) * self._rate)
        self._allowed_at = now
        if self._is_closed:
            return "shutdown"
        if not self._room:
            return "queue_full"
        if self._allowed < 1:
            return "rate"
        self._allowed -= 1
        self._room -= 1
        return ""

    def _leave(self, number: int) -> None:
        with self._lock:
            self._room += number


class _Exporter(SpanExporter):
    """The SDK's exporter, whose failures are counted."""

    def __init__(self, settings: TracingSettings, drops: Drops, leave: Callable[[int], None]) -> None:
        self._drops = drops
        self._leave = leave
        self._is_abandoned = False
        self._session = _Session()
        self._otlp = OTLPSpanExporter(
            endpoint=settings.url,
            certificate_file=None if settings.ca_file is None else str(settings.ca_file),
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            timeout=settings.timeout_seconds,
            session=self._session,
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Called by the SDK's thread."""
        if self._is_abandoned:
            return SpanExportResult.FAILURE
        self._session.problem = ""
        result = self._otlp.export(spans)
        # The SDK takes a redirection for success, and does not follow it.
        is_taken = result is SpanExportResult.SUCCESS and not self._session.problem
        if self._is_abandoned:  # meanwhile: they are counted already
            return result
        self._leave(len(spans))
        if is_taken:
            EXPORTED.inc(len(spans))
        else:
            self._drops.count("failed", len(spans), self._session.problem)
        return result

    def abandon(self) -> None:
        """Send nothing more, and end the wait for a next try."""
        self._is_abandoned = True
        self._otlp.shutdown()  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        """Called by the SDK at the end."""
        if not self._is_abandoned:
            self._otlp.shutdown()  # type: ignore[no-untyped-call]


class _Session(requests.Session):
    """Remembers why the last request failed: the SDK only logs it."""

    problem = ""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            response = super().request(*args, **kwargs)
        except Exception as error:
            self.problem = type(error).__name__
            raise
        self.problem = "" if response.status_code < HTTPStatus.MULTIPLE_CHOICES else f"HTTP {response.status_code}"
        return response


def _tracer(sampler: Sampler, resource: Resource, queue: _Queue) -> trace.Tracer:
    # Not the process's provider: that one belongs to the libraries and the user's code beside us.
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False, span_limits=_LIMITS)
    provider.add_span_processor(queue)
    return provider.get_tracer("rollstream")


def _remote(parent: TraceContext | None) -> trace.Span:
    return trace.INVALID_SPAN if parent is None else trace.NonRecordingSpan(_span_context(parent))


def _span_context(context: TraceContext) -> trace.SpanContext:
    state = trace.TraceState.from_header([context.tracestate]) if context.tracestate else None
    flags = trace.TraceFlags(context.flags)
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags, trace_state=state)


def _context_of(span: trace.Span) -> TraceContext | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags), found.trace_state.to_header())


def _nanoseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1e9)
