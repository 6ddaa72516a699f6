"""Records that a member of a consumer group has polled and not taken yet, and whether its partitions must be paused.

A pause throws away what the client has fetched, and the first record after it takes a second. Fast handlers empty a
full backlog in less than that. So partitions are paused only once it has been full for a while, and go on well before
it is empty.
"""

import threading
from collections import deque
from collections.abc import Collection
from typing import Final

from rollstream.bus.message import KafkaMessage, Partition

# The difference keeps the backlog filled while a resumed partition needs its second.
HIGH: Final = 128
LOW: Final = 64
FULL_SECONDS: Final = 0.5


class Backlog:
    """Who polls puts records in, without a lock. The consumer's lock guards `take` and `forget`."""

    def __init__(self) -> None:
        self._records: deque[KafkaMessage] = deque()
        self._is_low = threading.Event()
        self._full_since: float | None = None
        self.is_paused = False
        """Whether the partitions are paused, as who polls notes it."""

    def __len__(self) -> int:
        return len(self._records)

    def put(self, message: KafkaMessage) -> None:
        self._records.append(message)

    def take(self) -> KafkaMessage:
        """The oldest record, which is committed once it is finished from now on."""
        return self._records.popleft()

    def forget(self, partitions: Collection[Partition]) -> None:
        self._records = deque(message for message in self._records if message.topic_partition not in partitions)

    def say_if_low(self) -> None:
        """End a wait for room, if there is much. For who takes."""
        if len(self) < LOW and not self._is_low.is_set():
            self._is_low.set()

    def has_room(self, wait_seconds: float) -> bool:
        """Whether to poll: paused partitions bring nothing. If it is full, waits until it is low. For who polls."""
        self._is_low.clear()
        if len(self) < HIGH or self.is_paused:
            return True
        self._is_low.wait(wait_seconds)
        return False

    def must_pause(self, now: float) -> bool:
        """Whether the partitions must be paused, by a clock in seconds."""
        is_full = len(self) >= (LOW if self.is_paused else HIGH)
        self._full_since = (self._full_since or now) if is_full else None
        return self._full_since is not None and (self.is_paused or now - self._full_since > FULL_SECONDS)
