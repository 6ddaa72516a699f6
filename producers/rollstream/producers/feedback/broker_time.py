"""The broker's time, by which feedback settles, and up to where the topics must be read before it may."""

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.reader import TopicReader

_CLOCKS_DIFFER_MS: Final = 1000
"""How far the clocks of two brokers may be apart."""


class BrokerClock:
    """The newest append time of the records that were read. It stands still while none comes."""

    def __init__(self) -> None:
        self._newest_ms = 0
        self._seen_at = time.monotonic()

    def note(self, messages: Iterable[KafkaMessage]) -> None:
        """Take in the times of records."""
        newest_ms = max((message.timestamp_ms for message in messages), default=0)
        if newest_ms > self._newest_ms:
            self._newest_ms, self._seen_at = newest_ms, time.monotonic()

    @property
    def safe_ms(self) -> int:
        """A time that has passed at every broker: whatever one appends now has a later one."""
        return self._newest_ms - _CLOCKS_DIFFER_MS

    @property
    def estimated_safe_ms(self) -> int:
        """What `safe_ms` would be if a record came now."""
        return self.safe_ms + round((time.monotonic() - self._seen_at) * 1000)


class Look(NamedTuple):
    """A time of the broker's, and the ends of the topics that were asked for later: all from before lies below them."""

    at_ms: int
    ends: Mapping[Partition, int]


def has_reached(reader: TopicReader, ends: Mapping[Partition, int]) -> bool:
    """Whether the reader has read up to these offsets."""
    positions = reader.positions()
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
