"""Where the rows of a continuous collection come from: files that come and grow, or the tasks of an environment.

A feed is looked at again and again. Each look gives rows that were not read before, and may give some that were: after
kill -9, or where a file has grown. The state tells those apart by their content.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from rollstream.collect.continuous.state import State
from rollstream.collect.files.rows import BadRow, ReadRow, is_hidden, open_rows
from rollstream.collect.tasks import EnvironmentTasks, asked_fields
from rollstream.environments.protocol import Environment, Split
from rollstream.schemas.errors import ConfigurationError

_SUFFIXES: Final = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Found:
    """A row, and the file in which it lies; "" if in none."""

    row: ReadRow | BadRow
    file: str = ""


class Feed(Protocol):
    """A source that is looked at again and again."""

    @property
    def name(self) -> str:
        """What it is, for messages and the state."""
        ...

    @property
    def is_endless(self) -> bool:
        """Whether more may come."""
        ...

    def look(self, state: State) -> Iterator[Found]:
        """What is there now and was not read to its end before, with constant memory."""
        ...

    def marks(self) -> dict[str, Any]:
        """How far each place was read, up to the row that `look` gave last."""
        ...


class FilesFeed:
    """A file, or the .jsonl and .parquet files of a directory, each read when it is new or has changed.

    What was written to in the last `settled_seconds` is left for the next look.
    """

    is_endless = True

    def __init__(self, path: Path, *, settled_seconds: float) -> None:
        self._path = path
        self._settled_seconds = settled_seconds
        self._marks: dict[str, Any] = {}
        self.name = str(path.resolve())

    def look(self, state: State) -> Iterator[Found]:
        """See `Feed.look`. What can't be read as a file is one bad row, until the file changes."""
        self._marks = {}
        files = self._files()
        for gone in set(state.marked()) - {str(file) for file in files}:
            state.unmark(gone)
        for file in files:
            mark = self._mark_of(file)
            if mark is None or mark == state.mark(str(file)):
                continue
            yield from _rows_of(file)
            # Read to its end. If it was written to meanwhile, it has another mark at the next look.
            self._marks[str(file)] = mark

    def marks(self) -> dict[str, Any]:
        """See `Feed.marks`."""
        return self._marks

    def _files(self) -> list[Path]:
        path = self._path
        try:
            if not path.is_dir() or (path / "state.json").is_file():
                return [path]
            return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and not is_hidden(file))
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}; give rights, or name another") from error

    def _mark_of(self, file: Path) -> list[int] | None:
        """Size and time of a file; None if it is not settled, or gone."""
        try:
            status = (file / "state.json" if file.is_dir() else file).stat()
        except OSError:
            return None
        is_settled = time.time() - status.st_mtime >= self._settled_seconds
        return [status.st_size, status.st_mtime_ns] if is_settled else None


class EnvironmentFeed:
    """The tasks of one split of an environment, so many at each look."""

    def __init__(self, environment: Environment, *, split: Split, seed: int, num_tasks: int) -> None:
        self._tasks = EnvironmentTasks(environment, split=split, seed=seed, num_rows=None)
        self._num_tasks = num_tasks
        self._next: int | None = None
        self.name = f"{environment.name}/{split}/{seed}"
        self.is_endless = True

    def look(self, state: State) -> Iterator[Found]:
        """See `Feed.look`. It is over when the environment has no more tasks."""
        start = state.mark(self.name) or 0
        num_found = 0
        for task in islice(self._tasks, start, start + self._num_tasks):
            num_found += 1
            self._next = start + num_found
            yield Found(task if isinstance(task, BadRow) else ReadRow(task.number, task.where, asked_fields(task)))
        self.is_endless = num_found == self._num_tasks

    def marks(self) -> dict[str, Any]:
        """See `Feed.marks`."""
        return {} if self._next is None else {self.name: self._next}


def _rows_of(file: Path) -> Iterator[Found]:
    try:
        for row in open_rows(file):
            yield Found(row, str(file))
    except ConfigurationError as error:
        yield Found(BadRow(0, str(file), str(error)), str(file))
