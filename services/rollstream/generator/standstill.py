"""Whether this process stood still, so that another one may have its partitions, and it has not heard of that yet."""

import asyncio
import time
from typing import Final

_LOOKS_EVERY_SECONDS: Final = 0.5
# Below the shortest session of a member, above what a busy event loop takes.
_STOOD_STILL_SECONDS: Final = 5.0
# Its client asks the group at once when it goes on; the answer, that it is no member any more, cancels what runs.
_HEARS_WITHIN_SECONDS: Final = 10.0


class Standstill:
    """Notes when the event loop stands still: suspended, or starved. `watch` runs beside all else."""

    def __init__(self) -> None:
        self._seen_at = time.monotonic()
        self._unsure_until = 0.0

    async def watch(self) -> None:
        """Look now and then, for ever."""
        while True:
            self._look()
            await asyncio.sleep(_LOOKS_EVERY_SECONDS)

    async def over(self) -> None:
        """Wait, after a standstill, until this process would have heard that it was thought dead."""
        self._look()
        while (left := self._unsure_until - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._seen_at > _STOOD_STILL_SECONDS:
            self._unsure_until = now + _HEARS_WITHIN_SECONDS
        self._seen_at = now
