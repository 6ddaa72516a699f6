"""Whether a member of a consumer group may take another record, and the records that rest.

A record rests while it waits for something outside, such as a weight version: it weighs nothing, so that others can be
taken, and its bound does not count. Then it waits for room, before all that were not taken yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.offsets import Assignment

if TYPE_CHECKING:
    from rollstream.bus.in_flight import InFlight


class Room:
    """Used by the event loop alone; `lock` guards the assignment, which the polling thread uses too."""

    def __init__(self, assignment: Assignment, lock: threading.Lock, settings: ConsumerSettings) -> None:
        self._assignment = assignment
        self._lock = lock
        self._settings = settings
        # Records that have rested and want their weight back, with a future that ends when they have it.
        self._returning: deque[tuple[InFlight, int, asyncio.Future[None]]] = deque()
        self.reasons: set[str] = set()
        """Why no records are taken now, whatever room there is."""

    def for_another(self) -> bool:
        """Whether another record may be taken. The lock is held."""
        return (
            not self.reasons
            and not self._returning
            and self._assignment.num_unfinished < self._settings.max_in_flight
            and self._assignment.weight < self._settings.max_weight
        )

    def resume_rested(self) -> None:
        """Give their weight back to those that have rested, as far as there is room. The lock is held."""
        while self._returning and self._assignment.weight < self._settings.max_weight:
            taken, weight, has_room = self._returning.popleft()
            if not has_room.done():
                place = taken.partition, taken.message.offset, taken.epoch
                self._assignment.resume(*place, weight)
                has_room.set_result(None)

    def free(self, taken: InFlight, weight: int, take: Callable[[], None]) -> None:
        """See `InFlight.free`. `take` is the same as in `rest`."""
        with self._lock:
            self._assignment.free(taken.partition, taken.message.offset, taken.epoch, weight)
        take()

    async def rest(self, taken: InFlight, waiting: Awaitable[bool], take: Callable[[], None]) -> None:
        """See `InFlight.rest`. `take` takes records, and resumes those that have rested."""
        with self._lock:
            weight = self._assignment.rest(taken.partition, taken.message.offset, taken.epoch)
        take()
        if not await waiting:
            return
        has_room = asyncio.get_running_loop().create_future()
        self._returning.append((taken, weight, has_room))
        take()
        await has_room
