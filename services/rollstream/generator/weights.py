"""Loads new weight versions into a generator's engine, and reports each one.

Consumes   `weights`, from its start and without a consumer group, because every generator needs every record.
Produces   `weights-applied`.
Waits for  a newer version, and for running evaluation samples to end.
Unblocked  by the trainer's next commit.

A load that fails is retried with backoff. Meanwhile the old version goes on generating. A newer version ends the
retries. A record that can't be read is passed over.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.engines.protocol import Engine
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.known_versions import KnownVersions
from rollstream.history.weight_store import WeightStore
from rollstream.schemas.errors import CorruptWeightsError, EngineDeadError, EngineError
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import WEIGHTS, WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome, WeightsApplied, WeightsPublished

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherParts:
    """What the watcher works with."""

    run: Run
    publisher: Publisher
    store: WeightStore
    engine: Engine
    current: CurrentVersion
    generator_id: str
    evaluation_hold_seconds: float


class WeightWatcher:
    """Keeps one engine on the newest weight version that it can load."""

    def __init__(self, parts: WatcherParts) -> None:
        self._parts = parts
        parts.run.make_codecs(WEIGHTS, WEIGHTS_APPLIED)
        self._reader = parts.run.reader(WEIGHTS)
        self._known = KnownVersions()
        self._unreported: list[int] = []
        self._retry_at = 0.0
        self._backoff = _FIRST_BACKOFF_SECONDS

    async def load_first(self) -> None:
        """Wait until a version is published, then load it, or if that fails its nearest ancestor that can be loaded."""
        while self._parts.current.version is None:
            await self._read()
            # Before the end of the topic the newest version is not known, and each load of an older one is wasted.
            if self._known.newest is None or not self._reader.at_end():
                continue
            for record in self._known.ancestry(self._known.newest):
                if await self._load(record):
                    break
            else:
                await asyncio.sleep(self._next_backoff())

    async def follow(self, on_behind: Callable[[int | None], None]) -> None:
        """Load each newer version, for ever. `on_behind` is called with the engine's lag, see `behind`."""
        while True:
            await self._read()
            if self._is_due():
                record = self._known.record(self._known.newest) if self._known.newest is not None else None
                if record is not None and not await self._load(record):
                    self._retry_at = time.monotonic() + self._next_backoff()
            on_behind(self.behind())

    def behind(self) -> int | None:
        """Optimizer steps between the engine's version and the newest one; None if no path between them is known."""
        version = self._parts.current.version
        return None if version is None else self._known.behind(version)

    async def _read(self) -> None:
        messages = await asyncio.to_thread(self._reader.poll, 500, _POLL_SECONDS)
        for message in messages:
            record = self._parts.run.decoded(WEIGHTS, message)
            if record is None:
                continue
            self._known.note(record)
            self._unreported.append(record.weight_version)
            # Failures of the version before say nothing of this one.
            self._retry_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS

    def _is_due(self) -> bool:
        return self._known.newest != self._parts.current.version and time.monotonic() >= self._retry_at

    def _next_backoff(self) -> float:
        backoff = self._backoff
        self._backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
        return backoff

    async def _load(self, record: WeightsPublished) -> bool:
        """Check, load and report one version; False if it could not be loaded."""
        started = time.monotonic()
        version = record.weight_version
        try:
            # Fetched first: evaluation samples are held up only while the engine loads.
            path = await asyncio.to_thread(self._parts.store.fetch, record.uri, record.files)
            async with self._parts.current.changing(version, self._parts.evaluation_hold_seconds) as held_seconds:
                report = await self._parts.engine.load_weights(version, path)
        except EngineDeadError:
            raise
        except (CorruptWeightsError, EngineError) as error:
            _LOG.error("version %d was not loaded: %s", version, error, extra={"weight_version": version})
            await self._report(version, ApplyOutcome.FAILED, load_seconds=time.monotonic() - started, error=str(error))
            return False
        metrics.WEIGHT_VERSION.set(version)
        metrics.STALL.observe(report.stall_seconds)
        for skipped in [number for number in self._unreported if number < version]:
            await self._report(skipped, ApplyOutcome.SKIPPED)
        self._unreported = [number for number in self._unreported if number > version]
        stall = report.stall_seconds + held_seconds
        await self._report(version, ApplyOutcome.APPLIED, stall_seconds=stall, load_seconds=time.monotonic() - started)
        _LOG.info("version %d generates", version, extra={"weight_version": version})
        return True

    async def _report(
        self,
        version: int,
        outcome: ApplyOutcome,
        *,
        stall_seconds: float = 0.0,
        load_seconds: float = 0.0,
        error: str | None = None,
    ) -> None:
        metrics.LOADS.labels(outcome=outcome.value).inc()
        applied = WeightsApplied(
            generator_id=self._parts.generator_id,
            weight_version=version,
            outcome=outcome,
            stall_seconds=stall_seconds,
            load_seconds=load_seconds,
            error=error,
            applied_at=utc_now(),
        )
        await self._parts.publisher.publish(self._parts.run.out_record(WEIGHTS_APPLIED, applied))
