"""Rewards by example, for more examples than fit into memory: a scratch database.

Several rollouts of one example are averaged. Data sets pose a prompt more than once, so one that comes n times in both
files is n examples, in the order of the files; the samples of one example are told by their index. Where the files have
a prompt in different numbers, nothing tells which rows belong together: it is one example there.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.process.database import Database
from rollstream.rows.conversation import asked_of, plain_chat
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.values import with_whole_numbers

_CREATE: Final = """
    CREATE TABLE examples (
        key BLOB, occurrence INTEGER, label TEXT NOT NULL,
        num_before INTEGER NOT NULL, sum_before REAL NOT NULL, num_after INTEGER NOT NULL, sum_after REAL NOT NULL,
        in_before INTEGER NOT NULL, in_after INTEGER NOT NULL, PRIMARY KEY (key, occurrence)
    ) WITHOUT ROWID;
    CREATE TABLE met (key BLOB, sample BLOB, is_after INTEGER, repeats INTEGER, PRIMARY KEY (key, sample, is_after))
    WITHOUT ROWID
"""
_MEET: Final = """
    INSERT INTO met VALUES (?, ?, ?, 0)
    ON CONFLICT (key, sample, is_after) DO UPDATE SET repeats = repeats + 1 RETURNING repeats
"""
_ADD: Final = """
    INSERT INTO examples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, occurrence) DO UPDATE SET
        num_before = num_before + excluded.num_before, sum_before = sum_before + excluded.sum_before,
        num_after = num_after + excluded.num_after, sum_after = sum_after + excluded.sum_after,
        in_before = max(in_before, excluded.in_before), in_after = max(in_after, excluded.in_after)
"""
_SETTLE: Final = """
    CREATE TABLE compared AS
    SELECT hex(key) || CASE WHEN number > 0 THEN '-' || (number + 1) ELSE '' END AS key, min(label) AS label,
        sum(num_before) AS num_before, sum(sum_before) AS sum_before,
        sum(num_after) AS num_after, sum(sum_after) AS sum_after
    FROM (
        SELECT examples.*, CASE WHEN uneven.key IS NULL THEN occurrence ELSE 0 END AS number
        FROM examples LEFT JOIN (
            SELECT key FROM examples GROUP BY key HAVING sum(in_before) <> sum(in_after)
        ) AS uneven USING (key)
    ) GROUP BY key, number
"""
_SAMPLE: Final = ("sample_idx", "sample_index")
_BOTH: Final = "num_before > 0 AND num_after > 0"
_DELTA: Final = "sum_after / num_after - sum_before / num_before"


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """A row of a file. `sample` None: its key alone tells the example, however often it comes."""

    key: bytes
    label: str
    sample: str | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class Example:
    """One example. `key` tells apart examples whose labels begin alike."""

    label: str
    key: str


@dataclass(frozen=True, slots=True)
class ExampleDelta(Example):
    """The mean reward of one example in both files."""

    before: float
    after: float

    @property
    def delta(self) -> float:
        """How much the reward grew."""
        return self.after - self.before


class ExampleTable:
    """The rewards of two files, by example."""

    def __init__(self) -> None:
        self._database = Database(None, _CREATE)

    def add_all(self, rows: Iterable[ExampleRow], *, is_after: bool) -> None:
        """Add the rows of one file; one without a reward only makes its example known."""
        for row in rows:
            self._database.run(_ADD, *_values(row, self._occurrence(row, is_after), is_after=is_after))

    def settle(self) -> None:
        """Make the examples of the rows; called once, after all are added and before anything is asked."""
        self._database.run(_SETTLE)

    def _occurrence(self, row: ExampleRow, is_after: bool) -> int:
        """The how manieth example of its prompt the row belongs to, from 0."""
        if row.sample is None:
            return 0
        [(repeats,)] = self._database.read(_MEET, row.key, row.sample, is_after)
        return int(repeats)

    def deltas(self, limit: int = -1) -> Iterator[ExampleDelta]:
        """The examples with rewards in both files, those whose reward fell most first; -1: all."""
        query = (
            "SELECT label, key, sum_before / num_before, sum_after / num_after FROM compared "
            f"WHERE {_BOTH} ORDER BY {_DELTA}, label LIMIT ?"
        )
        for label, key, before, after in self._database.read(query, limit):
            yield ExampleDelta(label, key.lower(), before, after)

    def means(self) -> tuple[int, float, float]:
        """How many examples have rewards in both files, and the mean over these examples of each file."""
        query = f"SELECT count(*), avg(sum_before / num_before), avg(sum_after / num_after) FROM compared WHERE {_BOTH}"
        [(num, before, after)] = self._database.read(query)
        return num, before or 0.0, after or 0.0

    def missing(self, *, is_after: bool, limit: int) -> tuple[int, list[Example]]:
        """How many examples have a reward only in the other file, and the first of them by their labels."""
        here, there = ("num_after", "num_before") if is_after else ("num_before", "num_after")
        where = f"WHERE {here} = 0 AND {there} > 0"
        [(count,)] = self._database.read(f"SELECT count(*) FROM compared {where}")
        query = f"SELECT label, key FROM compared {where} ORDER BY label, key LIMIT ?"
        return count, [Example(label, key.lower()) for label, key in self._database.read(query, limit)]

    def close(self) -> None:
        """Delete the database."""
        self._database.close()


def _values(row: ExampleRow, occurrence: int, *, is_after: bool) -> tuple[Any, ...]:
    added = (0, 0.0) if row.reward is None else (1, float(row.reward))
    rewards = (0, 0.0, *added) if is_after else (*added, 0, 0.0)
    return (row.key, occurrence, row.label, *rewards, not is_after, is_after)


def sample_of(fields: Mapping[str, Any]) -> str:
    """What tells a row from the other samples of its example, where rows tell that; else an empty text."""
    return next((str(with_whole_numbers(fields[name])) for name in _SAMPLE if fields.get(name) is not None), "")


def example_key(fields: Mapping[str, Any], *, by_id: bool) -> bytes:
    """A digest of the row's `example_id`, or of what its prompt asks. Raises `UnusableRowError` if it has none."""
    value = fields.get("example_id") if by_id else plain_chat(asked_of(fields)[1])
    if value is None:
        raise UnusableRowError("it has no example_id" if by_id else "it has no prompt")
    text = json.dumps(with_whole_numbers(value), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
