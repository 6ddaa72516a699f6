"""What the backends of streams have in common: where a stream lies, and a line of it."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError

MAX_PARTITIONS: Final = 1000
_TOPIC: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class SingleStreamSpec:
    """One stream: a partition of a topic of one instance of an actor. `exp_path`: the output directory."""

    exp_path: Path
    topic: str
    instance: int = 0
    partition: int = 0

    def __post_init__(self) -> None:
        _check(self.topic, self.instance, (self.partition,))

    @property
    def partitions(self) -> range:
        return range(self.partition, self.partition + 1)


@dataclass(frozen=True, slots=True)
class StreamRangeSpec:
    """Several partitions to write to, from the first of `partition_range` to before its second."""

    exp_path: Path
    topic: str
    instance: int = 0
    partition_range: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        first, end = self.partition_range
        _check(self.topic, self.instance, (first, end - 1))
        if first >= end:
            raise ConfigurationError(f"partitions {first} to {end} of {self.topic} are none: the second is the end")

    @property
    def partitions(self) -> range:
        return range(*self.partition_range)


StreamSpec = SingleStreamSpec | StreamRangeSpec


class Line(NamedTuple):
    """A line as it lies there. `where`: for people; `next`: the position after it, in bytes or as an offset.

    `content` is None where it can't be read, and `why` says why.
    """

    where: str
    next: int
    content: bytes | None
    why: str = ""


class LineWriter(Protocol):
    """Writes to the partitions of one stream. When `write` returns, the line is on the disk, or confirmed."""

    def write(self, partition: int, content: bytes) -> int:
        """Add a line, without its end; returns the position after it."""


class StreamBackend(Protocol):
    """Where streams lie."""

    max_bytes: int
    """Largest line."""

    def writer(self, spec: StreamSpec, *, appends: bool) -> AbstractContextManager[LineWriter]:
        """Whoever does not append begins anew."""

    def lines(self, spec: SingleStreamSpec, *, start: int, stop: Stop | None) -> AbstractContextManager[Iterator[Line]]:
        """The lines from the position `start` on, 0: the first. With `stop` until that is asked, else to the end."""


def _check(topic: str, instance: int, partitions: tuple[int, ...]) -> None:
    if not _TOPIC.fullmatch(topic):
        raise ConfigurationError(f"topic {topic[:100]!r} of a stream: at most 64 of a-z, 0-9 and _, a letter first")
    for name, number in (("instance", instance), *(("partition", one) for one in partitions)):
        if not 0 <= number < MAX_PARTITIONS:
            raise ConfigurationError(f"{name} {number} of stream {topic} must be from 0 to {MAX_PARTITIONS - 1}")
