"""Loads new weight versions into a generator's engine, and reports each one.

Consumes   `weights`, from its end backwards and without a consumer group, because every generator needs every record.
Produces   `weights-applied`.
Waits for  a newer version, and for running evaluation samples to end.
Unblocked  by the trainer's next commit.

A load that fails is retried with backoff. Meanwhile the nearest ancestor that can be loaded generates: else a damaged
newest version could stop a run for good, since without rollouts no newer one comes. A newer version ends the retries. A
record that can't be read is passed over.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.engines.protocol import Engine, LoadReport
from rollstream.generator import metrics
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.known_versions import KnownVersions
from rollstream.generator.published import PublishedVersions
from rollstream.history.weight_store import WeightStore
from rollstream.schemas.errors import (
    ConfigurationError,
    CorruptWeightsError,
    EngineDeadError,
    EngineError,
    WeightStoreError,
)
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome, WeightsApplied, WeightsKind, WeightsPublished

_LOG = logging.getLogger(__name__)
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
# Trainers keep far fewer versions, so the files of older ones are deleted.
_MOST_ANCESTORS = 256
_LONGEST_ERROR = 1000
_LOAD_ENDS_SECONDS = 60.0


@dataclass(eq=False, kw_only=True)
class WeightWatcher:
    """Keeps one engine on the newest weight version that it can load."""

    run: Run
    publisher: Publisher
    store: WeightStore
    engine: Engine
    current: CurrentVersion
    generator_id: str
    evaluation_hold_seconds: float

    def __post_init__(self) -> None:
        self.run.make_codecs(WEIGHTS_APPLIED)
        self._published = PublishedVersions(self.run)
        self._known = KnownVersions()
        self._unreported: list[int] = []
        self._retry_at = 0.0
        self._backoff = _FIRST_BACKOFF_SECONDS

    def close(self) -> None:
        """Follow no more; waits for a read that goes on."""
        self._published.close()

    async def load_first(self) -> None:
        """Wait until a version is published, then load it, or if that fails its nearest ancestor that can be loaded."""
        while self.current.version is None:
            await self._read()
            # Before the end of the topic the newest version is not known, and each load of an older one is wasted.
            if not self._published.at_end:
                continue
            if self._known.newest is None:
                await self._read_older()
            await self._load_if_due()

    async def follow(self, on_behind: Callable[[int | None], None]) -> None:
        """Load each newer version, for ever. `on_behind` is called with the engine's lag, see `behind`."""
        while True:
            await self._read()
            await self._load_if_due()
            on_behind(self.behind())

    def behind(self) -> int | None:
        """Optimizer steps between the engine's version and the newest one; None if no path between them is known."""
        version = self.current.version
        return None if version is None else self._known.behind(version)

    async def _read(self) -> None:
        for record in await asyncio.to_thread(self._published.newer):
            self._known.note(record)
            await self.current.published(record.weight_version)
            # What was published before the version of now is nothing that was skipped.
            if self.current.version is not None and record.weight_version > self.current.version:
                self._unreported.append(record.weight_version)
            # Failures of the version before say nothing of this one.
            self._retry_at, self._backoff = 0.0, _FIRST_BACKOFF_SECONDS
            self._show_staleness()

    def _show_staleness(self) -> None:
        """Export since when a newer version is there than the one that generates."""
        current = self.current.version
        newer = [number for number in self._unreported if current is not None and number > current]
        first = self._known.record(min(newer)) if newer else None
        metrics.STALE_SINCE.set(first.created_at.timestamp() if first else 0.0)

    async def _read_older(self) -> bool:
        """Read a block of older records; False if there are none."""
        records = await asyncio.to_thread(self._published.older)
        self._known.note_older(records or [])
        return records is not None

    async def _load_if_due(self) -> None:
        newest = self._known.newest
        if newest is None or newest == self.current.version or time.monotonic() < self._retry_at:
            return
        try:
            await self._load_nearest(newest)
        except (WeightStoreError, ConfigurationError) as error:
            # It says nothing of a version: the older ones can't be read now either.
            _LOG.error("version %d was not loaded: %s", newest, error, extra={"weight_version": newest})
            await self._report(newest, ApplyOutcome.FAILED, error=str(error))
            self._retry_at = time.monotonic() + self._next_backoff()
            return
        if self.current.version == newest:
            return
        if self._known.forget_orphan(newest):
            _LOG.warning("version %d is passed over: nobody knows what it was trained from", newest)
            await self.current.published(self._known.newest)
        else:
            self._retry_at = time.monotonic() + self._next_backoff()

    async def _load_nearest(self, newest: int) -> None:
        """Load the newest version, or its nearest ancestor that can be loaded and is nearer than the engine's."""
        version: int | None = newest
        for _ in range(_MOST_ANCESTORS):
            record = None if version is None else await self._record(version)
            if record is None or not self._is_nearer(record.weight_version) or await self._load(record):
                return
            version = self._known.parent(record.weight_version)

    async def _record(self, version: int) -> WeightsPublished | None:
        while not self._known.knows(version) and await self._read_older():
            pass
        return self._known.record(version)

    def _is_nearer(self, version: int) -> bool:
        """Whether fewer optimizer steps lie between `version` and the newest than between the engine's and it."""
        behind, distance = self.behind(), self._known.behind(version)
        return version == self._known.newest or behind is None or (distance is not None and distance < behind)

    def _next_backoff(self) -> float:
        backoff = self._backoff
        self._backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
        return backoff

    async def _load(self, record: WeightsPublished) -> bool:
        """Check, load and report one version; False if it could not be loaded."""
        started = time.monotonic()
        version = record.weight_version
        try:
            _refuse_unknown_kind(record)
            # Fetched first: evaluation samples are held up only while the engine loads.
            path = await asyncio.to_thread(self.store.fetch, record.uri, record.files)
            async with self.current.changing(version, self.evaluation_hold_seconds) as held_seconds:
                report = await _to_its_end(self.engine.load_weights(version, path))
                await self._confirm(version)
        except EngineDeadError:
            raise
        except (CorruptWeightsError, EngineError) as error:
            # Its ancestors are only tried instead of it, and most of them have no files any more.
            is_newest = version == self._known.newest
            level = logging.ERROR if is_newest else logging.INFO
            _LOG.log(level, "version %d was not loaded: %s", version, error, extra={"weight_version": version})
            if is_newest:
                seconds = time.monotonic() - started
                await self._report(version, ApplyOutcome.FAILED, load_seconds=seconds, error=str(error))
            return False
        self.store.serve(record.uri)
        metrics.WEIGHT_VERSION.set(version)
        load = time.monotonic() - started
        metrics.LOAD.observe(load)
        metrics.STALL.observe(report.stall_seconds)
        skipped = [number for number in self._unreported if number < version]
        await asyncio.gather(*(self._report(number, ApplyOutcome.SKIPPED) for number in skipped))
        self._unreported = [number for number in self._unreported if number > version]
        self._show_staleness()
        stall = report.stall_seconds + held_seconds
        await self._report(version, ApplyOutcome.APPLIED, stall_seconds=stall, load_seconds=load)
        _LOG.info("version %d generates", version, extra={"weight_version": version})
        return True

    async def _confirm(self, version: int) -> None:
        """End the process if the engine has read something else than was checked: only a new one has other weights."""
        try:
            await asyncio.to_thread(self.store.confirm)
        except CorruptWeightsError as error:
            raise EngineDeadError(
                f"version {version}: {error}; the engine holds weights that nobody published"
            ) from error

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
            generator_id=self.generator_id,
            weight_version=version,
            outcome=outcome,
            stall_seconds=stall_seconds,
            load_seconds=load_seconds,
            error=error[:_LONGEST_ERROR] if error else None,
            applied_at=utc_now(),
        )
        await self.publisher.publish(self.run.out_record(WEIGHTS_APPLIED, applied))


async def _to_its_end(loading: Coroutine[Any, Any, LoadReport]) -> LoadReport:
    """Await it, and if this task is cancelled, cancel it only then: an engine whose update is cancelled is dead."""
    task = asyncio.ensure_future(loading)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_LOAD_ENDS_SECONDS)
        task.cancel()
        raise


def _refuse_unknown_kind(record: WeightsPublished) -> None:
    if record.kind is not WeightsKind.FULL:
        raise CorruptWeightsError(
            f"version {record.weight_version} is of kind {record.kind.value!r}: this generator loads full versions only"
        )
