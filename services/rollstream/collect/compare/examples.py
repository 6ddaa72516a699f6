"""Rewards by example, for more examples than fit into memory: a temporary SQLite database, which spills to disk.

Several rollouts of one example are averaged. SQLite deletes the file of the unnamed database by itself.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.collect.nulls import without_nulls
from rollstream.schemas.errors import UnusableRowError

_CREATE: Final = """
    CREATE TABLE examples (
        key BLOB PRIMARY KEY, label TEXT NOT NULL,
        num_before INTEGER NOT NULL, sum_before REAL NOT NULL, num_after INTEGER NOT NULL, sum_after REAL NOT NULL
    ) WITHOUT ROWID
"""
_ADD: Final = """
    INSERT INTO examples VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
        num_before = num_before + excluded.num_before, sum_before = sum_before + excluded.sum_before,
        num_after = num_after + excluded.num_after, sum_after = sum_after + excluded.sum_after
"""
_BOTH: Final = "num_before > 0 AND num_after > 0"
_DELTA: Final = "sum_after / num_after - sum_before / num_before"


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
        self._database = sqlite3.connect("")
        self._database.execute(_CREATE)

    def add_all(self, rows: Iterable[tuple[bytes, str, float | None]], *, is_after: bool) -> None:
        """Add (key, label, reward) of each row of one file; a row without a reward only makes its example known."""
        self._database.executemany(_ADD, (_values(*row, is_after=is_after) for row in rows))

    def deltas(self, limit: int = -1) -> Iterator[ExampleDelta]:
        """The examples with rewards in both files, those whose reward fell most first; -1: all."""
        query = (
            "SELECT label, hex(key), sum_before / num_before, sum_after / num_after FROM examples "
            f"WHERE {_BOTH} ORDER BY {_DELTA}, label LIMIT ?"
        )
        for label, key, before, after in self._database.execute(query, (limit,)):
            yield ExampleDelta(label, key.lower(), before, after)

    def means(self) -> tuple[int, float, float]:
        """How many examples have rewards in both files, and the mean over these examples of each file."""
        query = f"SELECT count(*), avg(sum_before / num_before), avg(sum_after / num_after) FROM examples WHERE {_BOTH}"
        num, before, after = self._database.execute(query).fetchone()
        return num, before or 0.0, after or 0.0

    def missing(self, *, is_after: bool, limit: int) -> tuple[int, list[Example]]:
        """How many examples have a reward only in the other file, and the first of them by their labels."""
        here, there = ("num_after", "num_before") if is_after else ("num_before", "num_after")
        where = f"WHERE {here} = 0 AND {there} > 0"
        [count] = self._database.execute(f"SELECT count(*) FROM examples {where}").fetchone()
        query = f"SELECT label, hex(key) FROM examples {where} ORDER BY label, key LIMIT ?"
        return count, [Example(label, key.lower()) for label, key in self._database.execute(query, (limit,))]

    def close(self) -> None:
        """Delete the database."""
        self._database.close()


def _values(key: bytes, label: str, reward: float | None, *, is_after: bool) -> tuple[Any, ...]:
    added = (0, 0.0) if reward is None else (1, float(reward))
    return (key, label, 0, 0.0, *added) if is_after else (key, label, *added, 0, 0.0)


def example_key(fields: Mapping[str, Any], *, by_id: bool) -> bytes:
    """A digest of the row's `example_id`, or of what its prompt asks. Raises `UnusableRowError` if it has none."""
    value = fields.get("example_id") if by_id else asked(fields.get("prompt", fields.get("messages")))
    if value is None:
        raise UnusableRowError("it has no example_id" if by_id else "it has no prompt")
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def asked(prompt: Any) -> Any:
    """A prompt in one form: a text is one message of the user, and nulls, which parquet adds, are left out."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        return None
    return without_nulls(prompt)
