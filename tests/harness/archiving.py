"""Records that tests put into an archive without a broker, and what they run in processes of their own.

Each of those imports this: so it imports little.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from rollstream.archive.appending import Appender
from rollstream.archive.archive import Archive, ArchiveIdentity
from rollstream.archive.archiver import Archiver, PassReport
from rollstream.archive.pieces import Piece, identity_of
from rollstream.bus.message import KafkaMessage
from rollstream.bus.run import Run
from rollstream.cli.archive import command
from rollstream.process.entry import ask_on_signal
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.record import Record
from rollstream.schemas.scored import RolloutScored

IDENTITY: Final = ArchiveIdentity(run="demo", cluster_id="one", topic_ids={"demo.scored": "a"})
FEW: Final = 3
"""Records of one piece."""


def a_message(topic: str, offset: int, partition: int = 0, **fields: Any) -> KafkaMessage:
    values: Mapping[str, Any] = {"key": None, "value": b"", "timestamp_ms": 1000} | fields
    return KafkaMessage(topic=f"demo.{topic}", partition=partition, offset=offset, **values)


def a_piece(topic: str, records: Sequence[Record], first: int = 0, partition: int = 0) -> Piece:
    """These records, from offset `first` on."""
    messages = [a_message(topic, offset, partition) for offset in range(first, first + len(records))]
    piece = Piece(topic, partition, first, first + len(records))
    piece.records.extend(zip(messages, records, strict=True))
    return piece


def writing(directory: Path) -> AbstractContextManager[Archive]:
    return Archive.writing(directory, IDENTITY)


def write_archive(
    directory: Path, *pieces: Sequence[RolloutScored], entries: Sequence[LedgerEntry] = (), first: int = 0
) -> Path:
    """An archive with each piece in a file of its own, and the ledger in one."""
    with writing(directory) as archive:
        appender = Appender(archive)
        if entries:
            appender.append(a_piece("ledger", entries))
        for rollouts in pieces:
            appender.append(a_piece("scored", rollouts, first))
            first += len(rollouts)
    return directory


def archive_in_small_pieces(config: Path, output: Path) -> None:
    """Make one pass, with few records in a file."""
    run = Run(StageSettings.load(config))
    with Archive.writing(output, identity_of(run)) as archive:
        Archiver(run, archive, most_records=FEW).make_pass()


def archive_whole(config: Path, output: Path) -> PassReport:
    """Make one pass."""
    run = Run(StageSettings.load(config))
    with Archive.writing(output, identity_of(run)) as archive:
        return Archiver(run, archive).make_pass()


def archive_until_stopped(config: Path, output: Path) -> None:
    """Make pass after pass without a pause, until SIGTERM."""
    run, stop = Run(StageSettings.load(config)), Stop()
    ask_on_signal(stop)
    with Archive.writing(output, identity_of(run)) as archive:
        archiver = Archiver(run, archive, most_records=FEW)
        while not stop.is_asked:
            archiver.make_pass()


def follow(config: Path, output: Path) -> None:
    """Be `rollstream archive --follow`, with a look each second."""
    command.main(["--config", str(config), "--output", str(output), "--follow", "--every", "1"])
