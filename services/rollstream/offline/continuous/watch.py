"""Shows from outside that a continuous collection goes on, and what it has done: health and metrics on a port.

A round may take many hours, so its length tells nothing. What tells that it is stuck is that no row is read and no task
is begun any more, for longer than a sample and the start of an engine may take.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from rollstream.offline.continuous import metrics
from rollstream.offline.live import LiveCounts
from rollstream.process.health import Health
from rollstream.rows.row import BadRow, ReadRow, RowSource

_START_SECONDS: Final = 1800.0
"""For what has no bound of its own: loading a model, scoring the last samples, writing a batch, publishing it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPlace:
    """Where health and metrics are served; port 0 takes a free one."""

    host: str
    port: int


class Watch:
    """Leaves a heartbeat whenever a row or a task goes on. Nobody can ask for it unless `health` is served."""

    def __init__(self, health: Health, *, stuck_seconds: float) -> None:
        self._health = health
        self._stuck_seconds = stuck_seconds

    def goes_on(self, waits_seconds: float = 0.0) -> None:
        """Something is done now; what comes next may wait for so long before it begins."""
        self._health.heartbeat("round", max(waits_seconds, 0.0) + self._stuck_seconds)

    def each(self, found: Iterator[T]) -> Iterator[T]:
        """The same, with a heartbeat at each."""
        for one in found:
            self.goes_on()
            yield one

    def looked(self, num_open_batches: int) -> None:
        """A look at the source ended."""
        metrics.LAST_LOOK.set_to_current_time()
        metrics.OPEN_PARTS.set(num_open_batches)
        self._health.check("source", True, "looked at")
        self.goes_on()

    def asked(self, counts: LiveCounts) -> None:
        """What is missing of a batch was asked."""
        metrics.WRITTEN.inc(counts.num_completed)
        for code, count in counts.failures.items():
            metrics.FAILURES.labels(code=code).inc(count)
        self.goes_on()


class WatchedRows:
    """Rows of which each that is read leaves a heartbeat. The next one is read when the last one is begun."""

    def __init__(self, rows: RowSource, watch: Watch) -> None:
        self._rows = rows
        self._watch = watch
        self.name = rows.name

    @property
    def num_rows(self) -> int | None:
        return self._rows.num_rows

    def identity(self) -> str:
        return self._rows.identity()

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        return self._watch.each(iter(self._rows))


def stuck_seconds(deadline: float, num_samples: int, concurrency: int) -> float:
    """How long nothing may go on: the samples of one task, one after the other where there is no room, and a start."""
    return _START_SECONDS + deadline * (1 + num_samples / concurrency)


@contextmanager
def served(place: HealthPlace | None, *, stuck_seconds: float) -> Iterator[Watch]:
    """A watch that can be asked at `place`; None: by nobody. Raises `ConfigurationError` if the port can't be had."""
    health = Health()
    watch = Watch(health, stuck_seconds=stuck_seconds)
    watch.goes_on()
    if place is not None:
        health.serve(place.host, place.port)
    try:
        yield watch
    finally:
        health.draining()
        health.close()
