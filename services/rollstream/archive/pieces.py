"""Reads the topics of a run in bounded pieces, each of one partition, from where an archive has come to."""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.archive.archive import ArchiveIdentity
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.run import Run
from rollstream.schemas.errors import ConfigurationError, DecodeError
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED, Topic

_LOG = logging.getLogger(__name__)

MOST_RECORDS: Final = 4096
MOST_BYTES: Final = 2**24
"""Of encoded records that wait together; in memory they take some ten times as much."""
MOST_LEDGER_BYTES: Final = 2**21
"""The same for the ledger, whose entries name each rollout in few bytes: in memory they take far more."""


@dataclass(slots=True)
class Piece:
    """The records of one partition from offset `first` up to `end`. `num_bytes`: of the encoded records."""

    topic: str
    partition: int
    first: int
    end: int
    num_bytes: int = 0
    records: list[tuple[KafkaMessage, Any]] = field(default_factory=list)
    unreadable: list[tuple[KafkaMessage, DecodeError]] = field(default_factory=list)

    @property
    def num_records(self) -> int:
        """Unreadable ones too."""
        return len(self.records) + len(self.unreadable)


def identity_of(run: Run, admin: KafkaAdmin | None = None) -> ArchiveIdentity:
    """What an archive of this run is of."""
    names = [run.topic(topic) for topic in (LEDGER, PROMPTS, SCORED)]
    found = (admin or run.admin()).identity(names)
    return ArchiveIdentity(run=run.name, cluster_id=found.cluster_id, topic_ids=dict(found.topic_ids))


def pieces(
    run: Run,
    topic: Topic[Any],
    archived: Mapping[int, int],
    *,
    accept_loss: bool = False,
    most_records: int = MOST_RECORDS,
) -> Iterator[Piece]:
    """Everything up to the ends of this moment, in pieces of at least one record. `archived`: partition -> next offset.

    Raises `ConfigurationError` if records were deleted before they were read, unless `accept_loss`.
    """
    bounds = run.bounds(topic)
    waiting = {
        partition: _begun(topic.name, partition, archived.get(partition[1]), found, accept_loss=accept_loss)
        for partition, found in bounds.items()
    }
    ends = {partition: end for partition, (_, end) in bounds.items()}
    left = {partition for partition, end in ends.items() if waiting[partition].end < end}
    if not left:
        return
    most_bytes = MOST_LEDGER_BYTES if topic.name == LEDGER.name else MOST_BYTES
    with run.reader(topic, start={partition: piece.end for partition, piece in waiting.items()}) as reader:
        for message in reader.to_end(ends):
            _take(run, topic, message, waiting)
            if _is_full(waiting.values(), most_records, most_bytes):
                yield _fullest(waiting)
            # Under steady traffic the reader never comes to an end of all partitions at the same time.
            if message.offset + 1 >= ends.get(message.topic_partition, 0):
                left.discard(message.topic_partition)
            if not left:
                break
        else:
            # Past the markers of transactions too, which take offsets.
            for partition, offset in reader.positions().items():
                waiting[partition].end = max(waiting[partition].end, offset)
    yield from (piece for piece in waiting.values() if piece.num_records)


def most_waiting(run: Run, topic: Topic[Any], archived: Mapping[int, int]) -> int:
    """Offsets that are not archived yet, of the partition that has most of them."""
    bounds = run.bounds(topic).items()
    return max((end - max(archived.get(number, 0), first) for (_, number), (first, end) in bounds), default=0)


def _begun(
    topic: str, partition: Partition, wanted: int | None, bounds: tuple[int, int], *, accept_loss: bool
) -> Piece:
    """The piece to begin with, still without records."""
    first, end = bounds
    where = f"{partition[0]}/{partition[1]}"
    start = first if wanted is None else wanted
    if start > end:
        raise ConfigurationError(f"{where} ends at {end}, and is archived up to {start}: it is another topic by now")
    if start < first:
        gap = f"{where}: offsets {start} to {first - 1} were deleted before they were archived"
        if not accept_loss:
            raise ConfigurationError(f"{gap}: archive more often than the topic is kept, or give --accept-loss")
        _LOG.warning("%s", gap)
    start = max(start, first)
    return Piece(topic, partition[1], start, start)


def _take(run: Run, topic: Topic[Any], message: KafkaMessage, waiting: dict[Partition, Piece]) -> None:
    # A partition that the topic got meanwhile is read from its start.
    piece = waiting.setdefault(message.topic_partition, Piece(topic.name, message.partition, 0, 0))
    piece.end = message.offset + 1
    piece.num_bytes += len(message.value or b"")
    try:
        piece.records.append((message, run.codec(topic).decode(message.checked_value())))
    except DecodeError as error:
        _LOG.warning("not archived: %s", error, extra=message.place())
        piece.unreadable.append((message, error))


def _is_full(waiting: Collection[Piece], most_records: int, most_bytes: int) -> bool:
    return (
        sum(piece.num_records for piece in waiting) >= most_records
        or sum(piece.num_bytes for piece in waiting) >= most_bytes
    )


def _fullest(waiting: dict[Partition, Piece]) -> Piece:
    """Take the piece with the most bytes out, and begin the next one of its partition."""
    partition = max(waiting, key=lambda one: (waiting[one].num_bytes, waiting[one].num_records))
    full = waiting[partition]
    waiting[partition] = Piece(full.topic, full.partition, full.end, full.end)
    return full
