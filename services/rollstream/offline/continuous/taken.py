"""What a continuous collection has taken so far, so that no row is ever taken twice: in its directory's progress file.

A row is known by the SHA-256 of its content, so it does not matter where it comes from again: in another order, in a
copy of its file, or as a message that was sent twice. Nothing here grows with the age of a collection: a row that came
out of a file is known as long as that file is there, and for a number of days after it was gone, since a disk may only
be away for a while; any other row for as many days after it was last met. The content of a row is kept until its batch
is finished.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Self

from rollstream.offline.progress import TABLES, Progress
from rollstream.process.database import Database
from rollstream.rows.jsonl import row_of_line
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import json_line

_JOB: Final = "continuous"
_DAY_SECONDS: Final = 86400
_ROWS_AT_ONCE: Final = 100
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS marks (place TEXT PRIMARY KEY, mark TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gone (place TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, file TEXT NOT NULL, met_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_by_time ON rows (met_at);
CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, tries INTEGER NOT NULL, sink_ends TEXT);
CREATE TABLE IF NOT EXISTS waiting (
    batch INTEGER, number INTEGER, place TEXT NOT NULL, fields BLOB NOT NULL, PRIMARY KEY (batch, number)
);
"""


class TakenRows:
    """Rows that were taken, how far each place was read, and the batches that are not finished. For one process."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, TABLES + _TABLES)
        self._facts = Progress(self._database, _JOB)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def transaction(self) -> AbstractContextManager[None]:
        """All changes of the block, or none."""
        return self._database.transaction()

    def check_source(self, source: str, prompt_key: str) -> None:
        """Raise `ConfigurationError` if the rows of this directory come from elsewhere, or another column is asked."""
        options = {"source": source, "prompt_key": prompt_key}
        if self._facts.begun_with is None:
            self._facts.begin(options)
        self._facts.refuse_other(options, "name another directory: rows that were taken are not taken again")

    @property
    def name(self) -> str:
        """A name that no other collection has; the keys of its records begin with it."""
        return str(self._fact("name", uuid.uuid4().hex))

    @property
    def looked_at(self) -> float:
        """When the source was last looked at, as a Unix time; 0 if never."""
        return float(self._fact("looked_at", 0.0))

    def note_look(self) -> None:
        """Note that the source is looked at now."""
        self._facts.note_facts(looked_at=time.time())

    def is_new(self, key: bytes, file: str) -> bool:
        """Whether this row was not taken before; from now on it was. `file`: where it lies; "" if in no file."""
        now = int(time.time())
        if self._database.run("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", key, file, now):
            return True
        self._database.run("UPDATE rows SET file = ?, met_at = ? WHERE key = ?", file, now, key)
        return False

    def forget(self, days: float) -> int:
        """Forget rows that were not met for so many days and whose file is gone as long; returns their number."""
        old = int(time.time() - days * _DAY_SECONDS)
        self._database.run("DELETE FROM gone WHERE since < ?", old)
        is_there = "file IN (SELECT place FROM marks) OR file IN (SELECT place FROM gone)"
        return self._database.run(f"DELETE FROM rows WHERE met_at < ? AND (file = '' OR NOT ({is_there}))", old)

    def mark(self, place: str) -> Any:
        """How far a place was read; None if it was never read to its end."""
        found = self._database.one("SELECT mark FROM marks WHERE place = ?", place)
        return None if found is None else json.loads(found[0])

    def note_marks(self, marks: Mapping[str, Any]) -> None:
        """Note how far places were read."""
        for place, mark in marks.items():
            self._database.run("INSERT OR REPLACE INTO marks VALUES (?, ?)", place, json.dumps(mark))
            self._database.run("DELETE FROM gone WHERE place = ?", place)

    def marked(self) -> list[str]:
        """The places that have a mark."""
        return [place for (place,) in self._database.read("SELECT place FROM marks")]

    def unmark(self, place: str) -> None:
        """Forget how far a place was read: it is not there any more. Its rows are known for some days yet."""
        self._database.run("INSERT OR REPLACE INTO gone VALUES (?, ?)", place, int(time.time()))
        self._database.run("DELETE FROM marks WHERE place = ?", place)

    @property
    def next_batch(self) -> int:
        """The number of the next batch."""
        return int(self._fact("next_batch", 1))

    def open_batch(self, number: int) -> None:
        """Note that batch `number` has its rows; the next one gets the next number."""
        self._database.run("INSERT INTO batches VALUES (?, 0, NULL)", number)
        self._facts.note_facts(next_batch=number + 1)

    def open_batches(self) -> list[int]:
        """The batches that are not finished, the oldest first."""
        return [number for (number,) in self._database.read("SELECT number FROM batches ORDER BY number")]

    def keep(self, batch: int, number: int, row: ReadRow) -> None:
        """Keep a row of a batch, which counts them from 0."""
        line = json_line({**row.fields, "collected_from": row.where})
        self._database.run("INSERT INTO waiting VALUES (?, ?, ?, ?)", batch, number, row.where, line)

    def rows_of(self, batch: int) -> "BatchRows":
        """The rows of a batch that is not finished."""
        return BatchRows(self._database, batch, f"{self.name}/{batch}")

    def progress_of(self, batch: int) -> Progress:
        """What of a batch is done."""
        return Progress(self._database, f"batch {batch}")

    def note_try(self, number: int) -> int:
        """Note that everything of a batch was asked once more; returns how often in all."""
        self._database.run("UPDATE batches SET tries = tries + 1 WHERE number = ?", number)
        [(tries,)] = self._database.read("SELECT tries FROM batches WHERE number = ?", number)
        return int(tries)

    def forget_tries(self) -> None:
        """Note of the batches that are not finished that they were never asked."""
        self._database.run("UPDATE batches SET tries = 0")

    def sink_ends(self, number: int) -> dict[int, int] | None:
        """The ends of the sink's partitions before a batch was published there; None if that was not begun."""
        [(found,)] = self._database.read("SELECT sink_ends FROM batches WHERE number = ?", number)
        return None if found is None else {int(partition): end for partition, end in json.loads(found).items()}

    def note_sink_ends(self, number: int, ends: Mapping[int, int]) -> None:
        """Note them, before the first record of the batch is published."""
        self._database.run("UPDATE batches SET sink_ends = ? WHERE number = ?", json.dumps(dict(ends)), number)

    def close_batch(self, number: int) -> None:
        """Note that a batch is finished, and forget it: its output has what its rows and samples were."""
        with self.transaction():
            self._database.run("DELETE FROM batches WHERE number = ?", number)
            self._database.run("DELETE FROM waiting WHERE batch = ?", number)
            self.progress_of(number).clear()

    def _fact(self, name: str, first: Any) -> Any:
        """A fact, which is `first` from the first time on that it is asked for."""
        if self._facts.fact(name) is None:
            self._facts.note_facts(**{name: first})
        return self._facts.fact(name)


class BatchRows:
    """The rows of a batch, as a file would give them."""

    def __init__(self, database: Database, batch: int, identity: str) -> None:
        self._database = database
        self._batch = batch
        self._identity = identity
        self.name = f"batch {batch}"

    @property
    def num_rows(self) -> int | None:
        [(count,)] = self._database.read("SELECT count(*) FROM waiting WHERE batch = ?", self._batch)
        return int(count)

    def identity(self) -> str:
        """A name that no other batch has."""
        return self._identity

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """The rows. A few are read at a time: notes are made, and may be taken back, between them."""
        query = "SELECT number, place, fields FROM waiting WHERE batch = ? AND number >= ? ORDER BY number LIMIT ?"
        first = 0
        while rows := list(self._database.read(query, self._batch, first, _ROWS_AT_ONCE)):
            for number, place, line in rows:
                yield row_of_line(number, place, line)
            first = rows[-1][0] + 1
