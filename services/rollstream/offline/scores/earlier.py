"""What the output of earlier runs, or of somebody else, holds beside the rollouts: nothing of it is lost in silence.

Its columns are carried over row by row, and only to a row whose other columns are still the same: a reward says
something about one response alone. Rewards of functions whose row changed since, or is gone, are left out and counted;
what is not ours of such a row is an error, before the file is replaced. A `reward` that somebody else wrote becomes
`reward_before`, and so do the other columns that each run replaces.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rollstream.offline.scores.columns import SCORE_COLUMNS
from rollstream.process.terminal import shown
from rollstream.rows.conversation import Row
from rollstream.rows.open import open_rows
from rollstream.rows.plain import without_nulls
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError

PREFIX: Final = "reward_"
_BEFORE: Final = "_before"
_OURS: Final = "reward_failure"
"""A file without this column was not written here."""


class EarlierColumns:
    """Reads an earlier output in step with the rollouts; without a file there are none.

    `column` is the one of this run, which is replaced.
    """

    def __init__(self, path: Path, column: str) -> None:
        self._path = path
        self._column = column
        self._rows = _rows_of(path) if path.exists() else iter(())
        self._known: dict[str, None] = {}
        self.num_changed = 0
        """Rows that had earlier rewards, but are others now, or are gone."""
        self.names: dict[str, None] = {}
        """The columns that were found, in their order."""

    def beside(self, fields: Row) -> dict[str, Any]:
        """The earlier columns of the next row, which now has these `fields`.

        Raises `ConfigurationError` if something that is not ours can't be carried over.
        """
        self._known.update(dict.fromkeys(fields))
        row = next(self._rows, None)
        if row is None:
            return {}
        found = self._found(row.fields, fields)
        self.names.update(dict.fromkeys(found))
        other = next((name for name in fields if not _is_score(name) and not _is_same(row.fields, fields, name)), None)
        if other is None:
            return found
        self._leave_out(row, found, f"has another {shown(other)} than the rollouts")
        return {}

    def end(self) -> None:
        """Look at the rows for which no row of the rollouts is left; raises as `beside` does."""
        for row in self._rows:
            self._leave_out(row, self._found(row.fields, self._known), "is not in the rollouts")

    def _found(self, row: Row, fields: Row) -> dict[str, Any]:
        kept = {name: value for name, value in row.items() if self._is_earlier(name, fields)}
        return kept | self._replaced(row, fields)

    def _is_earlier(self, name: str, fields: Row) -> bool:
        return name not in SCORE_COLUMNS and name != self._column and name not in fields

    def _replaced(self, row: Row, fields: Row) -> dict[str, Any]:
        """What each run replaces, under other names: only where it is not what an earlier run wrote there."""
        theirs = {
            name: row[name] for name in SCORE_COLUMNS if row.get(name) is not None and row[name] != fields.get(name)
        }
        if _OURS not in row:
            self._refuse_taken([name for name in theirs if row.get(name + _BEFORE) is not None])
            return {name + _BEFORE: value for name, value in theirs.items()}
        by_function = [row[name] for name in row if _is_of_function(name)]
        self._refuse_taken(["reward"] if "reward" in theirs and theirs["reward"] not in by_function else [])
        return {}

    def _refuse_taken(self, names: list[str]) -> None:
        if names:
            raise ConfigurationError(
                f"{self._path} would be replaced, but its column {names[0]!r} was changed since the last run and is in "
                f"no other column: give it another name there, e.g. 'my_{names[0]}', or name another --output"
            )

    def _leave_out(self, row: ReadRow, found: Row, what: str) -> None:
        lost = [name for name, value in found.items() if value is not None]
        others = [name for name in lost if not _is_score(name)]
        if others or _OURS not in row.fields:
            why = f"has a column {shown(others[0])} of its own" if others else "was not written by analyze-rewards"
            raise ConfigurationError(
                f"{self._path} would be replaced, but {why}, and {row.where} {what}: name another --output, or move "
                "that file away"
            )
        self.num_changed += bool(found)


def refuse_unfit(path: Path, column: str, rollouts: RowSource) -> None:
    """Raise `ConfigurationError` if `path` holds what can't be carried over: better now than after hours of scoring."""
    if path.exists():
        earlier = EarlierColumns(path, column)
        for row in rollouts:
            if isinstance(row, ReadRow):
                earlier.beside(row.fields)
        earlier.end()


def _is_of_function(name: str) -> bool:
    return name.startswith(PREFIX) and name not in SCORE_COLUMNS


def _is_score(name: str) -> bool:
    return name.startswith(PREFIX) or name.removesuffix(_BEFORE) in SCORE_COLUMNS


def _is_same(row: Row, fields: Row, name: str) -> bool:
    """Whether a value is the same, also after pandas has read and written it."""
    earlier, now = row.get(name), fields[name]
    if earlier == now:
        return True
    if isinstance(earlier, str) != isinstance(now, str):
        # Parquet holds what fits no type as JSON text; pandas drops the mark that says so. Of "1" in JSONL it makes 1.
        earlier, now = _parsed(earlier), _parsed(now)
    return bool(without_nulls(earlier) == without_nulls(now))


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _rows_of(path: Path) -> Iterator[ReadRow]:
    for row in open_rows(path):
        if isinstance(row, BadRow):
            raise ConfigurationError(
                f"{path} would be replaced, but its {row.where} can't be read: {row.why}; name another --output, or "
                "move that file away"
            )
        yield row
