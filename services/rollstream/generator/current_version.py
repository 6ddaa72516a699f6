"""Which weight version generates now, and when it may change.

An evaluation sample names the weight version that it wants, so that version must stay loaded until the sample ends.
Training samples may run across a change: their spans say which version sampled which tokens.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode

_LOG = logging.getLogger(__name__)


class CurrentVersion:
    """The weight version that the engine runs. Running evaluation samples delay a newer one for a bounded time.

    `version` is None until the first version is loaded.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self._running = 0
        self._is_changing = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def on_version(self, wanted: int) -> AsyncIterator[None]:
        """Wait until `wanted` is loaded, and keep it loaded until the block ends.

        Raises `FailedSampleError` if a newer version is loaded already.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_changing and self._is_at_least(wanted))
            if self.version != wanted:
                why = f"version {wanted} was asked for, {self.version} is loaded"
                raise FailedSampleError(FailureCode.VERSION_GONE, why)
            self._running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running -= 1
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

    def _is_at_least(self, wanted: int) -> bool:
        return self.version is not None and self.version >= wanted
