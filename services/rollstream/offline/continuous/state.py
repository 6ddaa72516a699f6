"""What a continuous collection has taken so far: an SQLite file in its directory, so that no row is ever taken twice.

A row is known by the SHA-256 of its content, so it does not matter where it comes from again: in another order, in a
copy of its file, or as a message that was sent twice. Nothing here grows with the age of a collection: a row that came
out of a file is known as long as that file is there, and for a number of days after it was gone, since a disk may only
be away for a while; any other row for as many days after it was last met.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from rollstream.schemas.errors import BrokenWorldError, ConfigurationError

_DAY_SECONDS: Final = 86400
_WAIT_SECONDS: Final = 10.0
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (place TEXT PRIMARY KEY, mark TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gone (place TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, file TEXT NOT NULL, met_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_by_time ON rows (met_at);
CREATE TABLE IF NOT EXISTS parts (number INTEGER PRIMARY KEY, tries INTEGER NOT NULL, sink_ends TEXT);
"""


class State:
    """Rows that were taken, how far each place was read, and the parts that are not finished. For one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._explained():
            # Transactions are begun and ended below, never by the module.
            self._table = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
            self._table.executescript(_TABLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes of the block, or none."""
        with self._explained():
            self._table.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # On a full disk SQLite has done it already.
            if self._table.in_transaction:
                self._table.execute("ROLLBACK")
            raise
        with self._explained():
            self._table.execute("COMMIT")

    def check_source(self, source: str, prompt_key: str) -> None:
        """Raise `ConfigurationError` if the rows of this directory come from elsewhere, or another column is asked."""
        known = self._fact("source", source)
        if known != source:
            raise ConfigurationError(
                f"{self._path.parent} collects from {known}, now it is {source}: name another directory"
            )
        known = self._fact("prompt_key", prompt_key)
        if known != prompt_key:
            raise ConfigurationError(
                f"{self._path.parent} asks the column {known!r} of its rows, now it is {prompt_key!r}: rows that were "
                "taken are not taken again, so name another directory"
            )

    @property
    def name(self) -> str:
        """A name that no other collection has; the keys of its records begin with it."""
        return self._fact("name", uuid.uuid4().hex)

    @property
    def looked_at(self) -> float:
        """When the source was last looked at, as a Unix time; 0 if never."""
        return float(self._fact("looked_at", "0"))

    def note_look(self) -> None:
        """Note that the source is looked at now."""
        self._run("INSERT OR REPLACE INTO facts VALUES ('looked_at', ?)", str(time.time()))

    def is_new(self, key: bytes, file: str) -> bool:
        """Whether this row was not taken before; from now on it was. `file`: where it lies; "" if in no file."""
        now = int(time.time())
        if self._run("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", key, file, now).rowcount:
            return True
        self._run("UPDATE rows SET file = ?, met_at = ? WHERE key = ?", file, now, key)
        return False

    def forget(self, days: float) -> int:
        """Forget rows that were not met for so many days and whose file is gone as long; returns their number."""
        old = int(time.time() - days * _DAY_SECONDS)
        self._run("DELETE FROM gone WHERE since < ?", old)
        is_there = "file IN (SELECT place FROM marks) OR file IN (SELECT place FROM gone)"
        return self._run(f"DELETE FROM rows WHERE met_at < ? AND (file = '' OR NOT ({is_there}))", old).rowcount

    def mark(self, place: str) -> Any:
        """How far a place was read; None if it was never read to its end."""
        found = self._run("SELECT mark FROM marks WHERE place = ?", place).fetchone()
        return None if found is None else json.loads(found[0])

    def note_marks(self, marks: Mapping[str, Any]) -> None:
        """Note how far places were read."""
        for place, mark in marks.items():
            self._run("INSERT OR REPLACE INTO marks VALUES (?, ?)", place, json.dumps(mark))
            self._run("DELETE FROM gone WHERE place = ?", place)

    def marked(self) -> list[str]:
        """The places that have a mark."""
        return [place for (place,) in self._run("SELECT place FROM marks").fetchall()]

    def unmark(self, place: str) -> None:
        """Forget how far a place was read: it is not there any more. Its rows are known for some days yet."""
        self._run("INSERT OR REPLACE INTO gone VALUES (?, ?)", place, int(time.time()))
        self._run("DELETE FROM marks WHERE place = ?", place)

    @property
    def next_part(self) -> int:
        """The number of the next part."""
        return int(self._fact("next_part", "1"))

    def open_part(self, number: int) -> None:
        """Note that part `number` has its rows; the next one gets the next number."""
        self._run("INSERT INTO parts VALUES (?, 0, NULL)", number)
        self._run("INSERT OR REPLACE INTO facts VALUES ('next_part', ?)", str(number + 1))

    def open_parts(self) -> list[int]:
        """The parts that are not finished, the oldest first."""
        return [number for (number,) in self._run("SELECT number FROM parts ORDER BY number").fetchall()]

    def note_try(self, number: int) -> int:
        """Note that everything of a part was asked once more; returns how often in all."""
        self._run("UPDATE parts SET tries = tries + 1 WHERE number = ?", number)
        return int(self._run("SELECT tries FROM parts WHERE number = ?", number).fetchone()[0])

    def forget_tries(self) -> None:
        """Note of the parts that are not finished that they were never asked."""
        self._run("UPDATE parts SET tries = 0")

    def sink_ends(self, number: int) -> dict[int, int] | None:
        """The ends of the sink's partitions before a part was published there; None if that was not begun."""
        found = self._run("SELECT sink_ends FROM parts WHERE number = ?", number).fetchone()[0]
        return None if found is None else {int(partition): end for partition, end in json.loads(found).items()}

    def note_sink_ends(self, number: int, ends: Mapping[int, int]) -> None:
        """Note them, before the first record of the part is published."""
        self._run("UPDATE parts SET sink_ends = ? WHERE number = ?", json.dumps(dict(ends)), number)

    def close_part(self, number: int) -> None:
        """Note that a part is finished."""
        self._run("DELETE FROM parts WHERE number = ?", number)

    def _fact(self, name: str, first: str) -> str:
        """A fact, which is `first` from the first time on that it is asked for."""
        self._run("INSERT OR IGNORE INTO facts VALUES (?, ?)", name, first)
        return str(self._run("SELECT value FROM facts WHERE name = ?", name).fetchone()[0])

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        with self._explained():
            return self._table.execute(statement, values)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BrokenWorldError(f"cannot write {self._path}: {error}; make room there, or give rights") from error
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"{self._path} is not the state of a collection: {error}; bring it back, or name another directory"
            ) from error
