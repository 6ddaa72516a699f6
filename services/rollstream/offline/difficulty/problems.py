"""The statistics of all problems, in a temporary table on the disk (SQLite), so that memory does not grow with them.

Each row is noted first. Then the notes are sorted by problem and reward, so that sums are added in an order that does
not depend on the file's, and each problem becomes one line. SQLite removes the table's file from its directory as soon
as it is open: also after kill -9 nothing is left. It lies where TMPDIR says, else in /var/tmp.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Self

from rollstream.offline.difficulty.buckets import UNKNOWN, Cuts, Measure, difficulty_score
from rollstream.offline.difficulty.judged_row import JudgedRow
from rollstream.offline.moments import Moments
from rollstream.schemas.errors import BrokenWorldError

_CACHE_KIB: Final = 16_384
_NOTES_AT_ONCE: Final = 5000
_BROKEN_DISK: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_SCHEMA: Final = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -{_CACHE_KIB};
CREATE TABLE source (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE note (problem BLOB, source INTEGER, data_idx INTEGER, reward REAL, normalized REAL, passed INTEGER);
CREATE TABLE problem (
    id BLOB PRIMARY KEY, source INTEGER, data_idx INTEGER, num_rows INTEGER, num_samples INTEGER, num_judged INTEGER,
    num_passed INTEGER, mean REAL, std REAL, lowest REAL, highest REAL, mean_normalized REAL, difficulty_score REAL,
    pass_rate REAL, bucket TEXT
) WITHOUT ROWID;
"""
_COLUMNS: Final = (
    "problem.id, source.name, data_idx, num_rows, num_samples, num_judged, num_passed, mean, std, lowest, highest, "
    "mean_normalized, difficulty_score, pass_rate, bucket"
)
_HARDEST_LAST: Final = {Measure.SCORE: "<=", Measure.PASS_RATE: ">=", Measure.MEAN: ">="}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Rewards are as scored, `mean_normalized` from 0 to 1, `pass_rate` in percent of `num_judged`."""

    problem: bytes
    source: str
    data_idx: int | None
    num_rows: int
    num_samples: int
    """Scored ones; the others count in nothing but `num_rows`."""
    num_judged: int
    num_passed: int
    mean: float | None
    std: float | None
    lowest: float | None
    highest: float | None
    mean_normalized: float | None
    difficulty_score: float | None
    pass_rate: float | None
    bucket: str


class Problems:
    """A temporary table of problems; `with` removes it. Raises `BrokenWorldError` where the disk is full."""

    def __init__(self) -> None:
        with _on_disk():
            # An empty name: a file of SQLite's own, which no other process can open.
            self._table = sqlite3.connect("", isolation_level=None)
            self._table.executescript(_SCHEMA)
        self._source_id = lru_cache(maxsize=1000)(self._inserted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.close()

    def note(self, rows: Iterable[JudgedRow]) -> None:
        """Take rows, which come as a stream."""
        pending: list[Sequence[Any]] = []
        for row in rows:
            source = self._source_id(row.source)
            pending.append((row.problem, source, row.data_idx, row.reward, row.normalized, row.passed))
            if len(pending) == _NOTES_AT_ONCE:
                self._insert("note", pending)
                pending = []
        self._insert("note", pending)

    def add_up(self, *, min_samples: int, by_pass: bool) -> None:
        """Make one line a problem of the notes. One with fewer samples than `min_samples` stays `unknown`.

        `by_pass`: only samples of which it is known whether they pass count as samples there.
        """
        with _on_disk():
            notes = self._table.execute("SELECT * FROM note ORDER BY problem, reward, normalized, passed, data_idx")
        pending: list[Sequence[Any]] = []
        for problem, rows in groupby(_fetched(notes), itemgetter(0)):
            pending.append(_line(problem, rows, min_samples=min_samples, by_pass=by_pass))
            if len(pending) == _NOTES_AT_ONCE:
                self._insert("problem", pending)
                pending = []
        self._insert("problem", pending)
        self._run("DROP TABLE note")

    def scores(self) -> Iterator[tuple[float, int]]:
        """Each score of the known problems and how many have it, ascending."""
        yield from self._read(
            "SELECT difficulty_score, count(*) FROM problem WHERE bucket IS NULL GROUP BY 1 ORDER BY 1"
        )

    def num_known(self) -> int:
        """Problems with enough samples."""
        [(count,)] = self._read("SELECT count(*) FROM problem WHERE bucket IS NULL")
        return int(count)

    def score_range(self) -> tuple[float, float, int]:
        """Smallest and largest score of the known problems, and how many different ones there are."""
        [(lowest, highest, different)] = self._read(
            "SELECT min(difficulty_score), max(difficulty_score), count(DISTINCT difficulty_score) FROM problem "
            "WHERE bucket IS NULL"
        )
        return lowest or 0.0, highest or 0.0, different

    def divide(self, cuts: Cuts) -> None:
        """Give each known problem its bucket."""
        column, compare = cuts.measure.value, _HARDEST_LAST[cuts.measure]
        easy, medium, hard = cuts.ends
        self._run(
            f"UPDATE problem SET bucket = CASE WHEN {column} {compare} ? THEN 'easy' WHEN {column} {compare} ? THEN "
            f"'medium' WHEN {column} {compare} ? THEN 'hard' ELSE 'very_hard' END WHERE bucket IS NULL",
            (easy, medium, hard),
        )

    def bucket_of(self, problem: bytes) -> str | None:
        """The bucket; None if there is no such problem."""
        found = list(self._read("SELECT bucket FROM problem WHERE id = ?", (problem,)))
        return str(found[0][0]) if found else None

    def __iter__(self) -> Iterator[Problem]:
        """All problems, by `data_idx` and id."""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM problem JOIN source ON source.id = source "
            "ORDER BY data_idx IS NULL, data_idx, problem.id"
        )
        return (Problem(*row) for row in rows)

    def _inserted(self, source: str) -> int:
        self._run("INSERT OR IGNORE INTO source (name) VALUES (?)", (source,))
        [(number,)] = self._read("SELECT id FROM source WHERE name = ?", (source,))
        return int(number)

    def _insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            with _on_disk():
                marks = ", ".join("?" * len(rows[0]))
                self._table.execute("BEGIN")
                self._table.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
                self._table.execute("COMMIT")

    def _run(self, statement: str, values: Sequence[Any] = ()) -> None:
        with _on_disk():
            self._table.execute(statement, values)

    def _read(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        with _on_disk():
            cursor = self._table.execute(query, values)
        return _fetched(cursor)


def _line(problem: bytes, notes: Iterable[Sequence[Any]], *, min_samples: int, by_pass: bool) -> Sequence[Any]:
    """The values of one problem. `notes` come by reward, those without one first."""
    rewards, normalized = Moments(), Moments()
    num_rows = num_judged = num_passed = 0
    source, data_idx = 0, None
    for _, note_source, note_idx, reward, unit, passed in notes:
        # The smallest, since the order of the rows must not matter.
        source = note_source if not num_rows else min(source, note_source)
        data_idx = note_idx if data_idx is None else min(data_idx, data_idx if note_idx is None else note_idx)
        num_rows += 1
        if reward is not None:
            rewards.add(reward)
            normalized.add(unit)
            num_judged += passed is not None
            num_passed += passed or 0
    counts = (num_rows, rewards.count, num_judged, num_passed)
    is_unknown = (num_judged if by_pass else rewards.count) < min_samples
    bucket = UNKNOWN if is_unknown else None
    if not rewards.count:
        return (problem, source, data_idx, *counts, *[None] * 7, bucket)
    pass_rate = 100 * num_passed / num_judged if num_judged else None
    score = difficulty_score(normalized.mean, normalized.std)
    moments = (rewards.mean, rewards.std, rewards.lowest, rewards.highest, normalized.mean)
    return (problem, source, data_idx, *counts, *moments, score, pass_rate, bucket)


def _fetched(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    with _on_disk():
        while rows := cursor.fetchmany(_NOTES_AT_ONCE):
            yield from rows


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _BROKEN_DISK:
            raise
        raise BrokenWorldError(
            f"the temporary table of problems: {error}; set TMPDIR to a directory with room for about 100 bytes a row"
        ) from error
