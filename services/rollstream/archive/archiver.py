"""Appends a run's topics to an archive: one pass after the other.

A pass reads `ledger`, `prompts` and `scored` up to their ends, in this order: so every record that an archived entry
names is archived too. What a pass reads it writes to new files, and no file is written again.

Who follows a run waits until there is enough for a file: else a year of passes would leave a million of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rollstream.archive.appending import Appender
from rollstream.archive.archive import Archive
from rollstream.archive.options import ArchiveOptions
from rollstream.archive.pieces import MOST_RECORDS, Piece, identity_of, most_waiting, pieces
from rollstream.archive.tables import MAIN
from rollstream.bus.run import Run
from rollstream.process.settings.storage import StorageSettings
from rollstream.process.stop import Stop
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED

_ORDER: Final = (LEDGER, PROMPTS, SCORED)
ENOUGH_RECORDS: Final = 1000
"""So many that wait in one partition are worth new files,"""
LONG_ENOUGH: Final = 12
"""and after so many looks at the topics whatever there is: an hour, unless somebody sets another time between two."""


@dataclass(slots=True)
class PassReport:
    """What passes have added to an archive."""

    num_rollouts: int = 0
    num_entries: int = 0
    num_prompts: int = 0
    num_unreadable: int = 0
    num_files: int = 0

    def add(self, piece: Piece, num_files: int) -> None:
        """Count what a piece has added."""
        num_records = len(piece.records)
        if piece.topic == LEDGER.name:
            self.num_entries += num_records
        elif piece.topic == PROMPTS.name:
            self.num_prompts += num_records
        else:
            self.num_rollouts += num_records
        self.num_unreadable += len(piece.unreadable)
        self.num_files += num_files


class Archiver:
    """Makes passes over a run's topics."""

    def __init__(
        self, run: Run, archive: Archive, *, accept_loss: bool = False, most_records: int = MOST_RECORDS,
        stop: Stop | None = None,
    ) -> None:  # fmt: skip
        """`accept_loss`: go on where records were deleted unread. `stop`: end a pass after the next piece."""
        self._run = run
        self._admin = run.admin()
        self._archive = archive
        self._accept_loss = accept_loss
        self._most_records = most_records
        self._stop = stop or Stop()
        self._appender = Appender(archive)

    def is_worth_a_pass(self) -> bool:
        """Whether enough has come for new files."""
        return any(most_waiting(self._run, one, self._archived(one.name)) >= ENOUGH_RECORDS for one in _ORDER)

    def make_pass(self) -> PassReport:
        """Archive what has come."""
        report = PassReport()
        for topic in _ORDER:
            # Those of a topic that was made anew meanwhile must not come in.
            self._archive.require(identity_of(self._run, self._admin))
            for piece in pieces(
                self._run, topic, self._archived(topic.name), accept_loss=self._accept_loss,
                most_records=self._most_records,
            ):  # fmt: skip
                self._archive.require(identity_of(self._run, self._admin))
                report.add(piece, self._appender.append(piece))
                if self._stop.is_asked:
                    break
        return report

    def _archived(self, topic: str) -> dict[int, int]:
        return self._archive.ends(MAIN[topic], topic)


def archive(
    run: Run, options: ArchiveOptions, told: Callable[[PassReport], None], *, storage: StorageSettings | None = None,
    stop: Stop,
) -> None:  # fmt: skip
    """Bring the archive up to date, once, or with `follow` look again and again for new records until `stop`.

    `told` gets the report of each pass. Raises `ConfigurationError` if the place is not this run's archive or can't be
    written, or if the topics have lost records that were not archived; `BrokerError` if no broker answers. Each time it
    can be started again.
    """
    run.require_topics(*_ORDER)
    with Archive.writing(options.output, identity_of(run), storage) as opened:
        archiver, num_looks = Archiver(run, opened, accept_loss=options.accept_loss, stop=stop), LONG_ENOUGH
        while True:
            if num_looks >= LONG_ENOUGH or archiver.is_worth_a_pass():
                told(archiver.make_pass())
                num_looks = 0
            if not options.follow or stop.wait(options.every):
                return
            num_looks += 1
