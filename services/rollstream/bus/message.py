"""Kafka messages in types of our own, so that only the bus depends on the Kafka client."""

from dataclasses import dataclass
from typing import NamedTuple

from rollstream.schemas.errors import DecodeError

Headers = tuple[tuple[str, bytes], ...]
Partition = tuple[str, int]
"""(topic, partition)"""


class KafkaMessage(NamedTuple):
    """One consumed message; `timestamp_ms` is the broker's append time.

    `undecoded`: why the client could not decompress it; it has no value then.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0
    undecoded: str = ""

    @property
    def topic_partition(self) -> Partition:
        return self.topic, self.partition

    def checked_value(self) -> bytes | None:
        """The value; raises `DecodeError` if the client could not decompress it."""
        if self.undecoded:
            raise DecodeError(f"{self.topic}: {self.undecoded}: send records of a few MB")
        return self.value

    def place(self) -> dict[str, object]:
        """Topic, partition and offset, as fields of a log line."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutRecord:
    """One message to publish; `topic` is the full name on the cluster."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    """None: the one that the key has."""


class Delivery(NamedTuple):
    """The place of a published message that every in-sync replica has confirmed.

    `timestamp_ms` is the broker's append time; 0 if its topic has none.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = 0
