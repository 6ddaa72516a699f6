"""The statistics of all problems, in a scratch database, so that memory does not grow with them.

Each row is noted first. Then the notes are sorted by problem and reward, so that sums are added in an order that does
not depend on the file's, and each problem becomes one line. It takes about 100 bytes a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Self

from rollstream.offline.difficulty.buckets import UNKNOWN, Cuts, difficulty_score
from rollstream.offline.difficulty.judged_row import JudgedRow
from rollstream.offline.statistics import RewardStatistics
from rollstream.process.database import Database

_SCHEMA: Final = """
CREATE TABLE note (problem BLOB, source TEXT, data_idx INTEGER, reward REAL, normalized REAL, passed INTEGER);
CREATE TABLE problem (
    id BLOB PRIMARY KEY, source TEXT, data_idx INTEGER, num_rows INTEGER, num_samples INTEGER, num_judged INTEGER,
    num_passed INTEGER, mean REAL, std REAL, lowest REAL, highest REAL, mean_normalized REAL, difficulty_score REAL,
    pass_rate REAL, bucket TEXT
) WITHOUT ROWID;
"""


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
    """A temporary table of problems; `with` removes it. Raises `MachineError` where the disk is full."""

    def __init__(self) -> None:
        self._table = Database(None, _SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.close()

    def note(self, rows: Iterable[JudgedRow]) -> None:
        """Take rows, which come as a stream."""
        notes = ((row.problem, row.source, row.data_idx, row.reward, row.normalized, row.passed) for row in rows)
        self._insert("note", 6, notes)

    def add_up(self, *, min_samples: int, by_pass: bool) -> None:
        """Make one line a problem of the notes. One with fewer samples than `min_samples` stays `unknown`.

        `by_pass`: only samples of which it is known whether they pass count as samples there.
        """
        notes = self._table.read("SELECT * FROM note ORDER BY problem, reward, normalized, passed, data_idx, source")
        lines = (
            _line(problem, rows, min_samples=min_samples, by_pass=by_pass)
            for problem, rows in groupby(notes, itemgetter(0))
        )
        self._insert("problem", 15, lines)
        self._table.run("DROP TABLE note")

    def scores(self) -> Iterator[tuple[float, int]]:
        """Each score of the known problems and how many have it, ascending."""
        yield from self._table.read(
            "SELECT difficulty_score, count(*) FROM problem WHERE bucket IS NULL GROUP BY 1 ORDER BY 1"
        )

    def num_known(self) -> int:
        """Problems with enough samples."""
        [(count,)] = self._table.read("SELECT count(*) FROM problem WHERE bucket IS NULL")
        return int(count)

    def score_range(self) -> tuple[float, float, int]:
        """Smallest and largest score of the known problems, and how many different ones there are."""
        [(lowest, highest, different)] = self._table.read(
            "SELECT min(difficulty_score), max(difficulty_score), count(DISTINCT difficulty_score) FROM problem "
            "WHERE bucket IS NULL"
        )
        return lowest or 0.0, highest or 0.0, different

    def divide(self, cuts: Cuts) -> None:
        """Give each known problem its bucket."""
        self._table.define("bucket_for", cuts.bucket)
        self._table.run(f"UPDATE problem SET bucket = bucket_for({cuts.measure.value}) WHERE bucket IS NULL")

    def bucket_of(self, problem: bytes) -> str | None:
        """The bucket; None if there is no such problem."""
        found = list(self._table.read("SELECT bucket FROM problem WHERE id = ?", problem))
        return str(found[0][0]) if found else None

    def __iter__(self) -> Iterator[Problem]:
        """All problems, by `data_idx` and id."""
        rows = self._table.read("SELECT * FROM problem ORDER BY data_idx IS NULL, data_idx, id")
        return (Problem(*row) for row in rows)

    def _insert(self, table: str, width: int, rows: Iterable[Sequence[Any]]) -> None:
        self._table.run_many(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", rows)


def _line(problem: bytes, notes: Iterable[Sequence[Any]], *, min_samples: int, by_pass: bool) -> Sequence[Any]:
    """The values of one problem. `notes` come by reward, those without one first."""
    rewards, normalized = RewardStatistics(), RewardStatistics()
    num_judged = num_passed = 0
    source, data_idx = None, None
    for _, note_source, note_idx, reward, unit, passed in notes:
        # The smallest, since the order of the rows must not matter.
        source = note_source if source is None else min(source, note_source)
        data_idx = note_idx if data_idx is None else min(data_idx, data_idx if note_idx is None else note_idx)
        if rewards.add(reward):
            normalized.add(unit)
            num_judged += passed is not None
            num_passed += passed or 0
    counts = (rewards.num + rewards.num_without, rewards.num, num_judged, num_passed)
    is_unknown = (num_judged if by_pass else rewards.num) < min_samples
    bucket = UNKNOWN if is_unknown else None
    if not rewards.num:
        return (problem, source, data_idx, *counts, *[None] * 7, bucket)
    pass_rate = 100 * num_passed / num_judged if num_judged else None
    score = difficulty_score(normalized.mean, normalized.std)
    moments = (rewards.mean, rewards.std, rewards.lowest, rewards.highest, normalized.mean)
    return (problem, source, data_idx, *counts, *moments, score, pass_rate, bucket)
