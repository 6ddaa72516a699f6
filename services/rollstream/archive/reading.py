"""Reads the topics of a run in bounded pieces, from where an archive has come to."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.archive.segments import Identity, Segment
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.run import Run
from rollstream.schemas.errors import ConfigurationError, DecodeError
from rollstream.schemas.record import Record
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED, Topic

_LOG = logging.getLogger(__name__)

MOST_RECORDS: Final = 4096
MOST_BYTES: Final = 2**24
"""Of encoded records in one piece; in memory they take some ten times as much."""
MOST_LEDGER_BYTES: Final = 2**21
"""The same for the ledger, whose entries name each rollout in few bytes: in memory they take far more."""


@dataclass(slots=True)
class Piece:
    """Records that were read together, and from where to read on after them.

    `num_bytes`: of the encoded records. `num_before`: records of the segment that they are added to; its bytes count
    too.
    """

    next_offsets: dict[int, int]
    num_before: int = 0
    num_bytes: int = 0
    records: list[tuple[KafkaMessage, Any]] = field(default_factory=list)
    unreadable: list[tuple[KafkaMessage, DecodeError]] = field(default_factory=list)

    def is_full(self, most_records: int, most_bytes: int) -> bool:
        """Whether no more records fit."""
        num_records = self.num_before + len(self.records) + len(self.unreadable)
        return num_records >= most_records or self.num_bytes >= most_bytes


def to_fill(segment: Segment | None, most_records: int) -> Segment | None:
    """The segment, if it takes more records."""
    if segment is None or segment.num_bytes is None:
        return None
    begun = Piece({}, segment.num_rows + segment.num_unreadable, segment.num_bytes)
    return None if begun.is_full(most_records, _most_bytes(segment.topic)) else segment


def identity_of(run: Run, admin: KafkaAdmin | None = None) -> Identity:
    """What an archive of this run is of."""
    names = [run.topic(topic) for topic in (LEDGER, PROMPTS, SCORED)]
    found = (admin or run.admin()).identity(names)
    return Identity(run=run.name, cluster_id=found.cluster_id, topic_ids=dict(found.topic_ids))


def pieces(
    run: Run,
    topic: Topic[Record],
    next_offsets: Mapping[int, int],
    *,
    begun: Segment | None = None,
    accept_loss: bool = False,
    most_records: int = MOST_RECORDS,
) -> Iterator[Piece]:
    """Everything up to the ends of this moment, in pieces of at least one record; the first one fills `begun`.

    Raises `ConfigurationError` if records were deleted before they were read, unless `accept_loss`.
    """
    bounds = run.bounds(topic)
    start = {
        partition: _start(partition, next_offsets.get(partition[1]), bounds[partition], accept_loss=accept_loss)
        for partition in bounds
    }
    ends = {partition: end for partition, (_, end) in bounds.items()}
    left = {partition for partition, end in ends.items() if start[partition] < end}
    if not left:
        return
    codec = run.codec(topic)
    piece = Piece({number: offset for (_, number), offset in start.items()})
    if begun is not None:
        piece.num_before, piece.num_bytes = begun.num_rows + begun.num_unreadable, begun.num_bytes or 0
    with run.reader(topic, start=start) as reader:
        for message in reader.to_end(ends):
            piece.next_offsets[message.partition] = message.offset + 1
            piece.num_bytes += len(message.value or b"")
            try:
                piece.records.append((message, codec.decode(message.checked_value())))
            except DecodeError as error:
                piece.unreadable.append((message, error))
            if piece.is_full(most_records, _most_bytes(topic.name)):
                yield piece
                piece = Piece(dict(piece.next_offsets))
            # Under steady traffic the reader never comes to an end of all partitions at the same time.
            if message.offset + 1 >= ends[message.topic_partition]:
                left.discard(message.topic_partition)
            if not left:
                break
        else:
            # Past the markers of transactions too, which take offsets.
            piece.next_offsets |= {number: offset for (_, number), offset in reader.positions().items()}
    if piece.records or piece.unreadable:
        yield piece


def _most_bytes(topic: str) -> int:
    return MOST_LEDGER_BYTES if topic == LEDGER.name else MOST_BYTES


def _start(partition: Partition, wanted: int | None, bounds: tuple[int, int], *, accept_loss: bool) -> int:
    """The offset to begin with."""
    first, end = bounds
    where = f"{partition[0]}/{partition[1]}"
    if wanted is None:
        return first
    if wanted > end:
        raise ConfigurationError(f"{where} ends at {end}, and is archived up to {wanted}: it is another topic by now")
    if wanted < first:
        gap = f"{where}: offsets {wanted} to {first - 1} were deleted before they were archived"
        if not accept_loss:
            raise ConfigurationError(f"{gap}: archive more often than the topic is kept, or give --accept-loss")
        _LOG.warning("%s", gap)
    return max(wanted, first)
