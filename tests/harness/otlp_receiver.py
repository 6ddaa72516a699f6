"""An OTLP collector in this process: it takes spans over HTTP, as any real one does, and keeps them for tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.harness.threads import Answering, served


@dataclass(frozen=True, kw_only=True)
class SeenSpan:
    """A span as it came in; ids are hexadecimal, `parent_id` of the first span of a trace is empty."""

    service: str
    run: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    tracestate: str
    has_failed: bool
    seconds: float
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    num_dropped_links: int = 0

    @property
    def operation(self) -> str:
        """The first word of its name."""
        return self.name.partition(" ")[0]


class OtlpReceiver(ThreadingHTTPServer):
    """`status`: the answer to every request; spans are kept with 200 only. While `is_hanging`, none is answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[SeenSpan] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.status = 200
        self.answering = threading.Event()
        self.answering.set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, operation: str) -> list[SeenSpan]:
        """The spans of an operation."""
        return [span for span in self.spans if span.operation == operation]

    def trace(self, trace_id: str) -> list[SeenSpan]:
        """The spans of a trace, in the order in which they came."""
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def a_receiver() -> Iterator[OtlpReceiver]:
    """A collector that answers until the end of the block."""
    with served(OtlpReceiver()) as receiver:
        try:
            yield receiver
        finally:
            receiver.answering.set()


def stop(receiver: OtlpReceiver) -> None:
    """Refuse connections from now on."""
    receiver.shutdown()
    receiver.server_close()


class _Handler(Answering, BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.body()
        self.server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.server.answering.wait()
        if self.server.status == 200:
            self.server.spans += _spans(ExportTraceServiceRequest.FromString(body))
        self.answer(b"", self.server.status)


def _spans(request: ExportTraceServiceRequest) -> Iterator[SeenSpan]:
    for one in request.resource_spans:
        process = _values(one.resource.attributes)
        for scope in one.scope_spans:
            for span in scope.spans:
                yield _span(span, process)


def _span(span: trace_pb2.Span, process: dict[str, Any]) -> SeenSpan:
    return SeenSpan(
        service=process["service.name"],
        run=process["service.namespace"],
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        tracestate=span.trace_state,
        has_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        num_dropped_links=span.dropped_links_count,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
