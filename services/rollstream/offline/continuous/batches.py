"""The batches of a continuous collection: rows that were not taken before, which an ordinary collection asks.

That rows were taken, what they hold and how far the source was read is one transaction. So after kill -9 either all of
a batch is there, or none of it. What can't be asked is listed at once in `part-N_bad_rows.jsonl`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rollstream.offline.continuous.sources import ContinuousSource, FoundRow
from rollstream.offline.continuous.taken import TakenRows
from rollstream.offline.tasks import task_of
from rollstream.process.crash_points import crash_point
from rollstream.process.stop import Stop
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, RowWriter, write_rows

MOST_ROWS: Final = 10_000
"""Of a batch: what a look finds beyond it makes the next one."""
_MOST_BYTES: Final = 2**26
_ENDINGS: Final = {"jsonl": ".jsonl", "parquet": ".parquet", "hf": ""}


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of batch `number`."""

    directory: Path
    number: int

    @property
    def bad_rows(self) -> Path:
        """Those found with its rows that can't be asked, each with its reason."""
        return self.directory / f"{self._name}_bad_rows.jsonl"

    def output(self, kind: Kind) -> Path:
        """Its rollouts."""
        return self.directory / f"{self._name}{_ENDINGS[kind]}"

    @property
    def _name(self) -> str:
        return f"part-{self.number:06d}"


@dataclass(slots=True)
class BatchCounts:
    """What became a batch, or was too little for one."""

    num_rows: int = 0
    num_bad_rows: int = 0
    num_known: int = 0
    num_bytes: int = 0
    is_last: bool = True

    @property
    def is_full(self) -> bool:
        """Whether the batch takes no more."""
        return self.num_rows + self.num_bad_rows >= MOST_ROWS or self.num_bytes > _MOST_BYTES


def take(
    batch: Batch, found: Iterator[FoundRow], source: ContinuousSource, taken: TakenRows, prompt_key: str, stop: Stop
) -> BatchCounts:
    """Make a batch of the next rows that were not taken before. Without any, none is made."""
    counts = BatchCounts()
    first = next(found, None)
    with taken.transaction():
        if first is None:
            # As most looks end where somebody watches: without a file that is made and removed again.
            taken.note_marks(source.marks())
            return counts
        with write_rows(batch.bad_rows, "jsonl") as bad_rows:
            for one in chain([first], found):
                _take_one(one, batch.number, taken, prompt_key, bad_rows, counts)
                if counts.is_full or stop.is_asked:
                    counts.is_last = False
                    break
        if not counts.num_bad_rows:
            batch.bad_rows.unlink()
        if counts.num_rows or counts.num_bad_rows:
            taken.open_batch(batch.number)
            if not counts.num_rows:
                taken.close_batch(batch.number)
        taken.note_marks(source.marks())
        crash_point("batch_written")
    crash_point("batch_taken")
    return counts


def _take_one(
    one: FoundRow, batch: int, taken: TakenRows, prompt_key: str, bad_rows: RowWriter, counts: BatchCounts
) -> None:  # fmt: skip
    row = one.row
    content = row.fields if isinstance(row, ReadRow) else [row.where, row.why]
    text = json.dumps(content, sort_keys=True).encode()
    if not taken.is_new(hashlib.sha256(text).digest(), one.file):
        counts.num_known += 1
        return
    counts.num_bytes += len(text)
    task = row if isinstance(row, BadRow) else task_of(row, prompt_key)
    if isinstance(task, BadRow):
        bad_rows.write(_listed(task, row))
        counts.num_bad_rows += 1
    elif isinstance(row, ReadRow):
        taken.keep(batch, counts.num_rows, row)
        counts.num_rows += 1


def _listed(task: BadRow, row: ReadRow | BadRow) -> dict[str, Any]:
    """A line on a row that can't be asked; with the row, if it could be read."""
    return {"where": task.where, "why": task.why, "row": row.fields if isinstance(row, ReadRow) else None}
