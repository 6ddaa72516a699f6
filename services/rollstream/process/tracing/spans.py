"""Spans of records, as the stages see them. Off by default; then nothing of OpenTelemetry is imported.

A span's context goes into the headers of the records that it causes (`trace_context.py`), so the next stage's span is
its child. Where spans are off, or a trace is not sampled, records carry on the context that they came with: the trace
of whoever submitted a prompt is not cut. Exporting is in `span_export.py`.

Names and attributes follow OpenTelemetry's conventions for messaging and, where they have not changed for long, for
generative AI. No attribute holds a text of a prompt, an answer or an error.
"""

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Literal, Protocol

from rollstream.process.tracing.context import TraceContext, TraceHeaders
from rollstream.process.tracing.metrics import DROPPED, EXPORTED
from rollstream.process.tracing.settings import TracingSettings
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

# Stages export both, whether tracing is on or not.
METRICS: Final = (DROPPED, EXPORTED)
GROUP_ID: Final = "rollstream.group_id"
ROLLOUT_ID: Final = "rollstream.rollout_id"
WEIGHT_VERSION: Final = "rollstream.weight_version"
MAX_LINKS: Final = 1024
"""Most links of one span; of those beyond, OpenTelemetry counts how many they were."""
FLUSH_SECONDS: Final = 5.0
"""What the end of a process waits for the collector to take the last spans."""
_NEEDED: Final = ("requests", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

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
    """Tracing without an endpoint."""

    is_on = False

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
        """A span that passes its parent on."""
        return _NO_CONTEXT if parent is None else PassedOn(parent)

    def samples(self, context: TraceContext) -> bool:
        """None."""
        return False


OFF: Final[Tracing] = _Off()


@contextmanager
def tracing_of(settings: TracingSettings, *, stage: str, run: str) -> Iterator[Tracing]:
    """The tracing of this process; at the end the last spans are exported, within `FLUSH_SECONDS`.

    It starts a thread, so it comes after whatever forks. Raises `ConfigurationError` as `require_tracing` does.
    """
    require_tracing(settings)
    if not settings.is_on:
        yield OFF
        return
    from rollstream.process.tracing.export import Exporting

    exporting = Exporting(settings, service=f"rollstream-{stage}", run=run, instance=_instance())
    _LOG.info("spans are exported: %g of all traces", settings.sample_ratio)
    try:
        yield exporting
    finally:
        exporting.close(FLUSH_SECONDS)


def require_tracing(settings: TracingSettings) -> None:
    """Raise `ConfigurationError` if spans are to be exported and can't be. Cheap: nothing is imported for it."""
    if not settings.is_on:
        return
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise ConfigurationError(
            f"[tracing] endpoint is set, but {', '.join(missing)} is not installed: install rollstream[tracing], or "
            "leave the endpoint empty"
        )
    if settings.ca_file is not None:
        try:
            settings.ca_file.open("rb").close()
        except OSError as error:
            raise ConfigurationError(f"[tracing] ca_file {settings.ca_file} can't be read: {error.strerror}") from error


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _instance() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
