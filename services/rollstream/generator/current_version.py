"""Which weight version generates now, and when it may change.

An evaluation sample names the weight version that it wants, so that version must stay loaded until the sample ends.
Training samples may run across a change: their spans say which version sampled which tokens.

An evaluation prompt waits before its samples begin (`arrival`), and takes no room meanwhile that training samples could
use. It waits for a version that is published and not loaded yet, but only for moments for one that is not published.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode

_LOG = logging.getLogger(__name__)

_NEWS_SECONDS: Final = 5.0
"""A version is on `weights` before a prompt names it, and the generator reads that topic several times a second."""


class CurrentVersion:
    """The weight version that the engine runs. Running evaluation samples delay a newer one for a bounded time.

    `version` is None until the first version is loaded. `load_seconds` bounds how long an evaluation prompt waits for a
    published version, `news_seconds` for one that is not.
    """

    def __init__(self, *, load_seconds: float = 60.0, news_seconds: float = _NEWS_SECONDS) -> None:
        self.version: int | None = None
        self._load_seconds = load_seconds
        self._news_seconds = news_seconds
        self._newest: int | None = None
        self._running = 0
        self._num_loads = 0
        self._is_changing = False
        self._changed = asyncio.Condition()

    def has(self, wanted: int) -> bool:
        """Whether `wanted` is loaded, and no other one about to be."""
        return not self._is_changing and self.version == wanted

    async def arrival(self, wanted: int) -> bool:
        """Wait until `wanted` or a newer version is loaded, but not beyond the bounds; whether `wanted` is."""
        async with self._changed:
            # While a version is loaded, no news are read.
            await self._until(lambda: not self._is_changing, self._load_seconds)
            await self._until(lambda: self._is_published(wanted), self._news_seconds)
            if self._is_published(wanted):
                await self._until(lambda: not self._is_changing and _reaches(self.version, wanted), self._load_seconds)
            return self.has(wanted)

    @asynccontextmanager
    async def on_version(self, wanted: int) -> AsyncIterator[None]:
        """Keep `wanted` loaded until the block ends.

        Raises `FailedSampleError` if it is not loaded, if a newer one is about to be, or if a newer one did not wait
        for the end of the block: not every engine can tell which tokens are of which.
        """
        async with self._changed:
            if self._is_changing or self.version != wanted:
                raise FailedSampleError(FailureCode.VERSION_GONE, self._gone(wanted))
            self._running += 1
            num_loads = self._num_loads
        try:
            yield
            if self._num_loads != num_loads:
                raise FailedSampleError(FailureCode.VERSION_GONE, f"{self._gone(wanted)}, and did not wait any longer")
        finally:
            async with self._changed:
                self._running -= 1
                self._changed.notify_all()

    async def published(self, newest: int | None) -> None:
        """Note that `newest` is the newest published version, None if there is none."""
        async with self._changed:
            self._newest = newest
            self._changed.notify_all()

    @asynccontextmanager
    async def changing(self, version: int, hold_seconds: float) -> AsyncIterator[float]:
        """Wait at most `hold_seconds` until no evaluation sample runs; no new one starts until the block ends.

        Yields the seconds waited. `version` becomes the current version at the end of the block, unless it raises.
        """
        started = time.monotonic()
        async with self._changed:
            self._is_changing = True
        try:
            await self._evaluations_to_end(hold_seconds)
            self._num_loads += 1
            yield time.monotonic() - started
            self.version = version
        finally:
            async with self._changed:
                self._is_changing = False
                self._changed.notify_all()

    async def _evaluations_to_end(self, hold_seconds: float) -> None:
        try:
            async with asyncio.timeout(hold_seconds), self._changed:
                await self._changed.wait_for(lambda: self._running == 0)
        except TimeoutError:
            # Training must not wait for ever. A sample that is overtaken fails later as VERSION_GONE.
            _LOG.warning("evaluation samples still run after %.0f s: the newer version does not wait", hold_seconds)

    async def _until(self, is_true: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, but not longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait_for(is_true)

    def _is_published(self, wanted: int) -> bool:
        return _reaches(self._newest, wanted) or _reaches(self.version, wanted)

    def _gone(self, wanted: int) -> str:
        if not self._is_published(wanted):
            return f"version {wanted} was asked for and is not published; the newest is {self._newest}"
        change = " and makes way for a newer one" if self._is_changing else ""
        return f"version {wanted} was asked for, {self.version} is loaded{change}"


def _reaches(version: int | None, wanted: int) -> bool:
    return version is not None and version >= wanted
