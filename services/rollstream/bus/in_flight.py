"""One record that a member of a consumer group took."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollstream.bus.message import KafkaMessage, Partition

if TYPE_CHECKING:
    from rollstream.bus.consumer import GroupConsumer


@dataclass(slots=True, eq=False)
class InFlight:
    """One record taken and not finished; `epoch` is the epoch of its partition in which it was taken."""

    message: KafkaMessage
    partition: Partition
    epoch: int
    consumer: GroupConsumer
    begun_at: float = 0.0
    """When its handling began, monotonic seconds; again after a rest."""

    @property
    def is_current(self) -> bool:
        """Whether its partition is still owned in that epoch. If not, its results must not be published."""
        return self.consumer.is_current(self)

    def begin(self) -> None:
        """Note that its handling begins: from here on its bound counts, not while it waits for other records."""
        self.begun_at = time.monotonic()
        self.consumer.begin(self)

    def mark(self, mark: int) -> None:
        """Mark it for those who ask how far this group is, until it is done; of several marks the lowest one stays."""
        self.consumer.mark(self, mark)

    async def rest(self, waiting: Awaitable[bool]) -> None:
        """Wait for `waiting`, then for room. Meanwhile other records have its room, and its bound does not count.

        If `waiting` gives False, what it waited for has not come: then it needs no room.
        """
        await self.consumer.rest(self, waiting)
        self.begin()

    def free(self, weight: int) -> None:
        """Note that so much of its weight is done, so that others can be taken while the rest of it is handled."""
        self.consumer.free(self, weight)

    def done(self) -> None:
        """Note that all its effects are confirmed, so that its offset may be committed."""
        self.consumer.finish(self)
