"""The parts of a continuous collection: rows that were not taken before, as a file that an ordinary collection asks.

A part's rows lie in `.part-N.rows.jsonl` before the state says that they were taken, in the same transaction for all of
them. So after kill -9 either all rows of a part are taken and there, or none is. What can't be asked is listed at once
in `part-N_bad_rows.jsonl`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rollstream.offline.continuous.feeds import Feed, Found
from rollstream.offline.continuous.state import State
from rollstream.offline.tasks import task_of
from rollstream.process.crash_points import crash_point
from rollstream.process.stop import Stop
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, RowWriter, write_rows

MOST_ROWS: Final = 10_000
"""Of a part: what a look finds beyond it makes the next one."""
_MOST_BYTES: Final = 2**26
_ENDINGS: Final = {"jsonl": ".jsonl", "parquet": ".parquet", "hf": ""}


@dataclass(frozen=True, slots=True)
class Part:
    """The files of part `number`."""

    directory: Path
    number: int

    @property
    def rows(self) -> Path:
        """Its rows as they were found; removed when it is finished."""
        return self.directory / f".{self._name}.rows.jsonl"

    @property
    def bad_rows(self) -> Path:
        """Those found with them that can't be asked, each with its reason."""
        return self.directory / f"{self._name}_bad_rows.jsonl"

    def output(self, kind: Kind) -> Path:
        """Its rollouts."""
        return self.directory / f"{self._name}{_ENDINGS[kind]}"

    @property
    def _name(self) -> str:
        return f"part-{self.number:06d}"


@dataclass(slots=True)
class Taken:
    """What became a part, or was too little for one."""

    num_rows: int = 0
    num_bad_rows: int = 0
    num_known: int = 0
    num_bytes: int = 0
    is_last: bool = True

    @property
    def is_full(self) -> bool:
        """Whether the part takes no more."""
        return self.num_rows + self.num_bad_rows >= MOST_ROWS or self.num_bytes > _MOST_BYTES


def take(part: Part, found: Iterator[Found], feed: Feed, state: State, prompt_key: str, stop: Stop) -> Taken:
    """Make a part of the next rows that were not taken before. Without any, none is made."""
    taken = Taken()
    first = next(found, None)
    with state.transaction():
        if first is None:
            # As most looks end where somebody watches: without a file that is made and removed again.
            state.note_marks(feed.marks())
            return taken
        with write_rows(part.rows, "jsonl") as rows, write_rows(part.bad_rows, "jsonl") as bad_rows:
            for one in chain([first], found):
                _take_one(one, state, prompt_key, rows, bad_rows, taken)
                if taken.is_full or stop.is_asked:
                    taken.is_last = False
                    break
        if not taken.num_bad_rows:
            part.bad_rows.unlink()
        if not taken.num_rows:
            part.rows.unlink()
        if taken.num_rows or taken.num_bad_rows:
            state.open_part(part.number)
            if not taken.num_rows:
                state.close_part(part.number)
        state.note_marks(feed.marks())
        crash_point("part_written")
    return taken


def remove_strays(directory: Path, state: State) -> None:
    """Remove the rows of parts that are finished, or that were never noted."""
    wanted = {Part(directory, number).rows for number in state.open_parts()}
    for rows in set(directory.glob(".part-*.rows.jsonl")) - wanted:
        rows.unlink()


def _take_one(
    one: Found, state: State, prompt_key: str, rows: RowWriter, bad_rows: RowWriter, taken: Taken
) -> None:  # fmt: skip
    row = one.row
    content = row.fields if isinstance(row, ReadRow) else [row.where, row.why]
    text = json.dumps(content, sort_keys=True).encode()
    if not state.is_new(hashlib.sha256(text).digest(), one.file):
        taken.num_known += 1
        return
    taken.num_bytes += len(text)
    task = row if isinstance(row, BadRow) else task_of(row, prompt_key)
    if isinstance(task, BadRow):
        bad_rows.write(_listed(task, row))
        taken.num_bad_rows += 1
    elif isinstance(row, ReadRow):
        rows.write({**row.fields, "collected_from": row.where})
        taken.num_rows += 1


def _listed(task: BadRow, row: ReadRow | BadRow) -> dict[str, Any]:
    """A line on a row that can't be asked; with the row, if it could be read."""
    return {"where": task.where, "why": task.why, "row": row.fields if isinstance(row, ReadRow) else None}
