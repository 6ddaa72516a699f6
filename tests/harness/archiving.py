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
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.record import Record
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import a_group, a_prompt, a_trained, an_entry

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


def passes(appender: Appender, versions: range) -> None:
    """In each the rollouts of a prompt come to `scored`; in each fourth four prompts, and the steps that use them."""
    prompts = {version: a_prompt(version, group_size=2) for version in versions}
    groups = {version: a_group([0.0, 1.0], prompt=prompt) for version, prompt in prompts.items()}
    for version in versions:
        appender.append(a_piece("scored", groups[version], 2 * version, partition=1))
        if version % 4 == 3:
            new = range(version - 3, version + 1)
            appender.append(a_piece("ledger", [a_step(one, groups[one]) for one in new], new[0]))
            appender.append(a_piece("prompts", [prompts[one] for one in new], new[0]))


def a_step(version: int, group: list[RolloutScored]) -> LedgerEntry:
    """The entry at this offset of `ledger`; the first one is that of the start."""
    kind, parent = (EntryKind.STEP, version - 1) if version else (EntryKind.RESTART, None)
    closed = (ClosedGroup(group_id=group[0].rollout.group_id, outcome=GroupOutcome.TRAINED),)
    trained = tuple(a_trained(one, partition=1, offset=2 * version + n) for n, one in enumerate(group))
    return an_entry(kind, step=version, weight_version=version, parent_version=parent, closed=closed, trained=trained)


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
