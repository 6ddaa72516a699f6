"""Which version generates now, and who may not see it change: evaluation samples name the version they want."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode

_LOG = logging.getLogger(__name__)


class CurrentVersion:
    """Holds the version that the engine runs; evaluation samples, which name theirs, hold a newer one back a while.

    `version` is None until the first version is loaded.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self._running = 0
        self._is_changing = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def on_version(self, wanted: int) -> AsyncIterator[None]:
        """Wait for `wanted`, then keep it until the block ends; raises `FailedSampleError` when it has passed."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_changing and self._is_at_least(wanted))
            if self.version != wanted:
                raise FailedSampleError(
                    FailureCode.VERSION_GONE, f"version {wanted} was asked for, {self.version} is loaded"
                )
            self._running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def changing(self, version: int, hold_seconds: float) -> AsyncIterator[float]:
        """Let running evaluation samples end, at most `hold_seconds`, and start none until the block ends.

        Yields the seconds waited. `version` generates from then on, unless the block raises.
        """
        started = time.monotonic()
        async with self._changed:
            self._is_changing = True
        try:
            await self._quiet(hold_seconds)
            yield time.monotonic() - started
            self.version = version
        finally:
            async with self._changed:
                self._is_changing = False
                self._changed.notify_all()

    async def _quiet(self, hold_seconds: float) -> None:
        try:
            async with asyncio.timeout(hold_seconds), self._changed:
                await self._changed.wait_for(lambda: self._running == 0)
        except TimeoutError:
            _LOG.warning("evaluation samples still run after %.0f s: the newer version does not wait", hold_seconds)

    def _is_at_least(self, wanted: int) -> bool:
        return self.version is not None and self.version >= wanted
