"""Turns on the tracing of a process, if its settings name an endpoint."""

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rollstream.process.tracing.settings import TracingSettings
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
FLUSH_SECONDS: Final = 5.0
"""What the end of a process waits for the collector to take the last spans."""
_NEEDED: Final = ("requests", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


@contextmanager
def tracing_of(settings: TracingSettings, *, stage: str, run: str) -> Iterator[Tracing]:
    """The tracing of this process; at the end the last spans are exported, within `FLUSH_SECONDS`.

    It starts a thread, so it comes after whatever forks. Raises `ConfigurationError` as `require_tracing` does.
    """
    require_tracing(settings)
    if not settings.is_on:
        yield OFF
        return
    # OpenTelemetry is imported only where spans are exported.
    from rollstream.process.tracing.export import Exporting

    exporting = Exporting(
        settings, service=f"rollstream-{stage}", run=run, instance=f"{socket.gethostname()}-{os.getpid()}"
    )
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
