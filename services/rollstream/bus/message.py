"""Messages as they come from Kafka and go to it, without the client's types."""

from dataclasses import dataclass
from typing import NamedTuple

Headers = tuple[tuple[str, bytes], ...]
Partition = tuple[str, int]
"""(topic, partition)"""


class Message(NamedTuple):
    """One consumed message; `timestamp_ms` is the broker's append time."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0

    def place(self) -> dict[str, object]:
        """Where it lies, as fields of a log line."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutRecord:
    """One message to publish; `topic` is the full name on the cluster."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Delivery(NamedTuple):
    """Where a published message lies, once every in-sync replica has it."""

    topic: str
    partition: int
    offset: int
