"""The rewards of earlier runs: `reward_<function>` columns of the output that a new run replaces.

They are carried over row by row, and only to a row whose other columns are still the same: a reward says something
about one response alone. What changed, or came since, has none, and is counted.
"""

from collections.abc import Iterator
from itertools import filterfalse
from pathlib import Path
from typing import Any

from rollstream.collect.files.rows import BadRow, ReadRow, open_rows
from rollstream.collect.scores.columns import SCORE_COLUMNS, Row

PREFIX = "reward_"


class EarlierRewards:
    """Reads an earlier output in step with the rollouts; without a file there are none.

    `column` is the one of this run, which is replaced.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._column = column
        self._rows = _good_rows(path) if path.exists() else iter(())
        self.num_changed = 0
        """Rows that had earlier rewards, but are others now."""
        self.names: dict[str, None] = {}
        """The columns that were found, in their order."""

    def beside(self, fields: Row) -> dict[str, Any]:
        """The earlier rewards of the next row, which now has these `fields`."""
        row = next(self._rows, None)
        if row is None:
            return {}
        found = {name: value for name, value in row.items() if self._is_earlier(name, fields)}
        self.names.update(dict.fromkeys(found))
        if all(row.get(name) == value for name, value in fields.items() if not _is_score(name)):
            return found
        self.num_changed += bool(found)
        return {}

    def _is_earlier(self, name: str, fields: Row) -> bool:
        return name.startswith(PREFIX) and name not in SCORE_COLUMNS and name != self._column and name not in fields


def _is_score(name: str) -> bool:
    return name in SCORE_COLUMNS or name.startswith(PREFIX)


def _good_rows(path: Path) -> Iterator[dict[str, Any]]:
    for row in filterfalse(lambda row: isinstance(row, BadRow), open_rows(path)):
        assert isinstance(row, ReadRow)
        yield row.fields
