"""The places in the engine for clients' calls: how many are answered side by side, and how many wait.

Training has a bound of its own (`engines/vllm/places.py`), so that a place is mostly free here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollstream.engines.deadline import before_the_end
from rollstream.generator.serve.metrics import RUNNING, WAITING


class ServingLane:
    """`num_places` in the engine, and at most `max_waiting` choices that wait for one when a new call comes."""

    def __init__(self, num_places: int, max_waiting: int) -> None:
        self._places = asyncio.Semaphore(num_places)
        self._max_waiting = max_waiting
        self._num_waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether so many wait already that a new call must be refused."""
        return self._places.locked() and self._num_waiting >= self._max_waiting

    @asynccontextmanager
    async def place(self, ends_at: float) -> AsyncIterator[None]:
        """Wait for a place, and hold it inside the block. Raises `EngineLateError` if none is free by then."""
        self._count_waiting(1)
        try:
            async with before_the_end(ends_at):
                await self._places.acquire()
        finally:
            self._count_waiting(-1)
        RUNNING.inc()
        try:
            yield
        finally:
            self._places.release()
            RUNNING.dec()

    def _count_waiting(self, change: int) -> None:
        self._num_waiting += change
        WAITING.set(self._num_waiting)
