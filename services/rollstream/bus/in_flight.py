"""Records that a member of a consumer group has taken, and whether it may take another.

A record rests while it waits for something outside, such as a weight version: it weighs nothing, so that others can be
taken, and its bound does not count. Then it waits for room, before all that were not taken yet.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.message import KafkaMessage
from rollstream.bus.offsets import Assignment, Ending, OffsetTracker


class Room:
    """What may be taken beside what is in flight. For the event loop alone, except `lock`, which guards `assignment`.

    `take` takes records while there is room.
    """

    def __init__(
        self, assignment: Assignment, lock: threading.Lock, settings: ConsumerSettings, take: Callable[[], None]
    ) -> None:
        self.lock = lock
        self.take = take
        self.reasons: set[str] = set()
        """Why no records are taken now, whatever room there is."""
        self.taken: deque[InFlight] = deque()
        """Records that were taken and not handed out yet."""
        self._assignment = assignment
        self._settings = settings
        # Records that have rested and want their weight back, with a future that ends when they have it.
        self._returning: deque[tuple[InFlight, int, asyncio.Future[None]]] = deque()

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
            rested, weight, has_room = self._returning.popleft()
            if not has_room.done():
                rested.tracker.resume(rested.message.offset, weight)
                has_room.set_result(None)

    async def given_back(self, rested: "InFlight", weight: int) -> None:
        """Wait until there is room for a record that has rested."""
        has_room = asyncio.get_running_loop().create_future()
        self._returning.append((rested, weight, has_room))
        self.take()
        await has_room


@dataclass(slots=True, eq=False)
class InFlight:
    """One record taken and not finished; `tracker` is that of its partition when it was taken."""

    message: KafkaMessage
    tracker: OffsetTracker
    room: Room
    begun_at: float = 0.0
    """When its handling began, monotonic seconds; again after a rest."""
    ending: Ending | None = None
    """What is to be done once it is committed, for example to delete what its next owner would have gone on from."""

    @property
    def is_current(self) -> bool:
        """Whether its partition is owned without a break since then. If not, its results must not be published."""
        return self.tracker.is_owned

    def begin(self) -> None:
        """Note that its handling begins: from here on its bound counts, not while it waits for other records."""
        self.begun_at = time.monotonic()
        with self.room.lock:
            self.tracker.begin(self.message.offset, now=self.begun_at)

    def mark(self, mark: int) -> None:
        """Mark it for those who ask how far this group is, until it is done; of several marks the lowest one stays."""
        with self.room.lock:
            self.tracker.mark(self.message.offset, mark)

    async def rest(self, waiting: Awaitable[bool]) -> None:
        """Wait for `waiting`, then for room. Meanwhile other records have its room, and its bound does not count.

        If `waiting` gives False, what it waited for has not come: then it needs no room.
        """
        with self.room.lock:
            weight = self.tracker.rest(self.message.offset)
        self.room.take()
        if await waiting:
            await self.room.given_back(self, weight)
        self.begin()

    def free(self, weight: int) -> None:
        """Note that so much of its weight is done, so that others can be taken while the rest of it is handled."""
        with self.room.lock:
            self.tracker.free(self.message.offset, weight)
        self.room.take()

    def done(self) -> None:
        """Note that all its effects are confirmed, so that its offset may be committed."""
        with self.room.lock:
            self.tracker.finish(self.message.offset, self.ending)
        # Many at once cost less: there is no hurry while some that were taken wait to be handed out.
        if not self.room.taken:
            self.room.take()
