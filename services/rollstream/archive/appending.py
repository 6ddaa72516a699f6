"""Appends a piece of a topic to the tables that get rows from it: each a new file."""

from collections.abc import Iterable, Iterator

from rollstream.archive.archive import Archive
from rollstream.archive.counting import Counting
from rollstream.archive.pieces import Piece
from rollstream.archive.records import Row, entry_row, group_rows, prompt_row, sample_row, unreadable_row
from rollstream.archive.tables import (
    GROUPS,
    KEYS,
    PASSED_OVER,
    PROMPTS,
    ROLLOUTS,
    SPARSE,
    STEPS,
    UNREADABLE,
    RowFile,
)
from rollstream.schemas.topics import LEDGER
from rollstream.schemas.topics import PROMPTS as PROMPTS_TOPIC


class Appender:
    """Takes the pieces of each partition in their order."""

    def __init__(self, archive: Archive) -> None:
        """Go on where the archive ends."""
        self._archive = archive
        self._counting = Counting(archive)

    def append(self, piece: Piece) -> int:
        """Write the rows of a piece; returns the number of new files."""
        num_files = 0
        for table, rows in self._rows(piece):
            # A process that was killed before it wrote the main table may have written this one.
            first = max(piece.first, self._archive.ends(table, piece.topic).get(piece.partition, 0))
            new = [row for row in rows if row[KEYS[table]] >= first]
            if first < piece.end and (new or table not in SPARSE):
                state = self._counting.state() if table == STEPS else ""
                self._archive.add(RowFile(table, piece.topic, piece.partition, first, piece.end), new, state)
                num_files += 1
        return num_files

    def _rows(self, piece: Piece) -> Iterator[tuple[str, Iterable[Row]]]:
        """The tables, the main one last."""
        yield UNREADABLE, (unreadable_row(*bad) for bad in piece.unreadable)
        if piece.topic == LEDGER.name:
            yield PASSED_OVER, self._counting.take([(message.offset, entry) for message, entry in piece.records])
            yield GROUPS, (row for record in piece.records for row in group_rows(*record))
            yield STEPS, (entry_row(*record) for record in piece.records)
        elif piece.topic == PROMPTS_TOPIC.name:
            yield PROMPTS, (prompt_row(*record) for record in piece.records)
        else:
            yield ROLLOUTS, (sample_row(*record) for record in piece.records)
