"""SQLite, and the only module that imports it: a file that is kept, or a scratch one.

A file is for one process at a time. After kill -9 it holds every transaction that was committed, after a power failure
all but the last ones: what is committed is written to a log, and the disk is waited for only when that log is moved
into the file. No memory is shared for that log, so that it works on network disks too.

A scratch database has no name. SQLite removes its file as soon as it is open, so that nothing is left after kill -9. It
lies where TMPDIR says, else in /var/tmp, and memory does not grow with it.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rollstream.process.files import move, writable
from rollstream.schemas.errors import ConfigurationError, DamagedFileError, MachineError, RollstreamError

_OURS: Final = 0x526F6C31
"""What the header of our files says, so that one of another program is neither written nor removed."""
# Before anything is read: else a file with a log would share memory.
_ALONE: Final = "PRAGMA locking_mode = EXCLUSIVE"
_FILE: Final = f"""
PRAGMA auto_vacuum = FULL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA application_id = {_OURS};
"""
_SCRATCH: Final = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -16384;
"""
_WAIT_SECONDS: Final = 1.0
_ROWS_AT_ONCE: Final = 1000
_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_HELD: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REFUSED: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


class Database:
    """The database at `path`, or a scratch one, with `tables`, whose statements may be run again. For one thread.

    Each method raises `MachineError` if the disk is full or broken, `DamagedFileError` if the file is no database any
    more, and `ConfigurationError` if it can't be written, is none of ours, or belongs to another process.
    """

    def __init__(self, path: Path | None, tables: str) -> None:
        self.path = path
        with self._explained():
            # Transactions are begun and ended here, never by the module.
            self._connection = sqlite3.connect(path or "", timeout=_WAIT_SECONDS, isolation_level=None)
        try:
            with self._explained():
                if path is not None:
                    self._connection.execute(_ALONE)
                    self._refuse_foreign()
                self._connection.executescript(_SCRATCH if path is None else _FILE)
                self._connection.executescript(tables)
                if path is None:
                    # All that is done to it: a commit for each row would only take time.
                    self.begin()
        except RollstreamError:
            self.close()
            raise

    def _refuse_foreign(self) -> None:
        if self.one("PRAGMA application_id") != (_OURS,) and self.one("SELECT 1 FROM sqlite_master"):
            raise ConfigurationError(
                f"{self.path} is a database of another program, or of another version of this one: move it away, or "
                "choose another place"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement; the number of rows that it changed."""
        with self._explained():
            return self._connection.execute(statement, values).rowcount

    def run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row, all or none."""
        with self.transaction(), self._explained():
            self._connection.executemany(statement, rows)

    def read(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, a few at a time."""
        with self._explained():
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from rows

    def one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row of a query; None if there is none."""
        with self._explained():
            found: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
            return found

    def define(self, name: str, function: Callable[[Any], Any]) -> None:
        """Have statements know `name`, a function of one value that always gives the same for it."""
        self._connection.create_function(name, 1, function, deterministic=True)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes of the block, or none; within another one, it is part of that."""
        if self._connection.in_transaction:
            yield
            return
        self.begin()
        try:
            yield
        except BaseException:
            self._undo()
            raise
        self.commit()

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if not self._connection.in_transaction:
            self.run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the open transaction, if there is one. If that fails, nothing of it was done."""
        if self._connection.in_transaction:
            try:
                self.run("COMMIT")
            except RollstreamError:
                self._undo()
                raise

    def _undo(self) -> None:
        # On a full disk SQLite has done it already.
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close it; what was not committed is gone, and so is a scratch database."""
        self._connection.close()

    @property
    def num_bytes(self) -> int:
        """Size of the file, without what waits in its log."""
        size = self.one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        assert size is not None
        return int(size[0])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except sqlite3.DatabaseError as error:
            raise self._explanation(error) from error

    def _explanation(self, error: sqlite3.DatabaseError) -> RollstreamError:
        code = error.sqlite_errorcode & 0xFF
        if self.path is None:
            return MachineError(f"a scratch database: {error}; set TMPDIR to a directory with room")
        if code in _FULL:
            return MachineError(f"cannot write {self.path}: {error}; make room, and run the same command again")
        if code in _HELD:
            return ConfigurationError(f"another process writes {self.path} right now: wait for its end")
        if code in _REFUSED:
            return ConfigurationError(f"cannot write {self.path}: {error}; give rights there, or choose another place")
        return DamagedFileError(
            f"{self.path} is damaged, or of another program: {error}; bring it back, or remove it to begin anew"
        )


def move_aside(path: Path) -> Path:
    """Give a damaged database another name, in place of one that was moved before, so that a new one can be begun.

    Its log is of no use without it. Returns the new name; raises what `writable` raises.
    """
    aside = path.with_name(f"{path.name}.damaged")
    with writable(path):
        move(path, aside)
        for name in ("wal", "shm", "journal"):
            path.with_name(f"{path.name}-{name}").unlink(missing_ok=True)
    return aside
