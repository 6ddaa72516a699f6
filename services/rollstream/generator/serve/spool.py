"""The spool: answers on this machine's disk that are not on Kafka yet. For one thread, and one process.

An answer is here before its client has the end of it, and until the broker has confirmed it. After kill -9 all of them
are still here. A damaged spool is moved aside, and a new one begins: what lay in it waits for a person.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rollstream.generator.serve import metrics
from rollstream.process.database import Database, move_aside
from rollstream.process.files import writable
from rollstream.schemas.errors import ConfigurationError, DamagedFileError, SpoolFullError

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_FILE: Final = "answers.sqlite"
# AUTOINCREMENT: a number is never given again, so removing the ones that were published removes no other.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS answers
    (number INTEGER PRIMARY KEY AUTOINCREMENT, kept_at REAL NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS run (name TEXT NOT NULL);
"""
_ROWS_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 2**23


class Spooled(NamedTuple):
    """An encoded answer, its number in the spool, and when it was kept (seconds since the epoch)."""

    number: int
    kept_at: float
    key: bytes
    value: bytes


class Spool:
    """Answers of `run` in `directory`, at most `most_bytes` in all.

    Each method raises `MachineError` while the disk is full or broken. Raises `ConfigurationError` if the directory
    can't be written, if another process has it, or if it holds answers of another run.
    """

    def __init__(self, directory: Path, run: str, most_bytes: int) -> None:
        self._path = directory / _FILE
        self._run = run
        self._most_bytes = most_bytes
        with writable(directory):
            # What people asked is for nobody else on this machine.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        metrics.SPOOL_LIMIT.set(most_bytes)
        try:
            self._database = self._opened()
        except DamagedFileError as error:
            self._database = self._begun_anew(error)
        self.num_bytes = 0
        self.num_records = self._on(lambda database: _number(database, "SELECT count(*) FROM answers"))
        self._measure()

    def append(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep keys and values, all or none; once this returns kill -9 loses none. Raises `SpoolFullError` too."""
        added = sum(len(key) + len(value) for key, value in records)
        if self.num_bytes + added > self._most_bytes:
            raise SpoolFullError(
                f"the spool {self._path} has {self.num_bytes} of at most {self._most_bytes} bytes: is the broker up? "
                "Else raise serve.spool_bytes"
            )
        now = time.time()
        rows = [(now, key, value) for key, value in records]
        self._on(lambda database: database.run_many("INSERT INTO answers (kept_at, key, value) VALUES (?, ?, ?)", rows))
        self.num_records += len(rows)
        self._measure()

    def oldest(self) -> list[Spooled]:
        """The next answers to publish, at most 256 and some 8 MiB."""
        found = self._on(_oldest)
        metrics.SPOOL_OLDEST.set(found[0].kept_at if found else 0.0)
        return found

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget answers that are on Kafka."""
        rows = [(number,) for number in numbers]
        self._on(lambda database: database.run_many("DELETE FROM answers WHERE number = ?", rows))
        self.num_records -= len(rows)
        self._measure()

    def close(self) -> None:
        self._database.close()

    def _on(self, work: Callable[[Database], T]) -> T:
        try:
            return work(self._database)
        except DamagedFileError as error:
            self._database.close()
            self._database = self._begun_anew(error)
            self.num_records = 0
            return work(self._database)

    def _opened(self) -> Database:
        database = Database(self._path, _TABLES)
        try:
            self._claim(database)
        except BaseException:
            database.close()
            raise
        return database

    def _claim(self, database: Database) -> None:
        """Note whose it is, if it is new. Answers would go to the topics of a run that did not give them."""
        owner = database.one("SELECT name FROM run")
        if owner is None:
            database.run("INSERT INTO run VALUES (?)", self._run)
        elif owner[0] != self._run:
            raise ConfigurationError(
                f"{self._path} holds answers of the run {str(owner[0])[:60]!r}, and this one is {self._run!r}: set "
                "another serve.spool, or move it away"
            )

    def _begun_anew(self, error: DamagedFileError) -> Database:
        aside = move_aside(self._path)
        metrics.SPOOL_DAMAGED.inc()
        _LOG.error("%s; it is %s now, and answers in it are not published", error, aside)
        return self._opened()

    def _measure(self) -> None:
        self.num_bytes = self._on(lambda database: database.num_bytes)
        metrics.SPOOL_BYTES.set(self.num_bytes)
        metrics.SPOOL_RECORDS.set(self.num_records)


def _number(database: Database, query: str) -> int:
    found = database.one(query)
    assert found is not None
    return int(found[0])


def _oldest(database: Database) -> list[Spooled]:
    num_bytes, last = 0, 0
    sizes = database.read("SELECT number, length(value) FROM answers ORDER BY number LIMIT ?", _ROWS_AT_ONCE)
    for number, size in list(sizes):
        if last and num_bytes + size > _BYTES_AT_ONCE:
            break
        num_bytes, last = num_bytes + size, number
    rows = database.read("SELECT number, kept_at, key, value FROM answers WHERE number <= ? ORDER BY number", last)
    return [Spooled(*row) for row in rows]
