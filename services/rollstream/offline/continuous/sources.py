"""Where the rows of a continuous collection come from: files that come and grow, or the tasks of an environment.

A source is looked at again and again. Each look gives rows that were not read before, and may give some that were:
after kill -9, or where a file has grown. What was taken tells those apart by their content.
"""

import logging
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from rollstream.environments.protocol import Environment, Split
from rollstream.offline.continuous.growing import GrownRows, ReadTo
from rollstream.offline.continuous.taken import TakenRows
from rollstream.offline.tasks import EnvironmentTasks, asked_fields
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.open import is_hidden, open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
_SUFFIXES: Final = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row, and the file in which it lies; "" if in none."""

    row: ReadRow | BadRow
    file: str = ""


class ContinuousSource(Protocol):
    """A source that is looked at again and again."""

    @property
    def name(self) -> str:
        """What it is, for messages and for what was taken."""
        ...

    @property
    def is_endless(self) -> bool:
        """Whether more may come."""
        ...

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        """What is there now and was not read to its end before, with constant memory."""
        ...

    def marks(self) -> dict[str, Any]:
        """How far each place was read, up to the row that `look` gave last."""
        ...


class FilesSource:
    """A file, or the .jsonl and .parquet files of a directory, each read when it is new or has changed.

    What was written to in the last `settled_seconds` is left for the next look, and so is a last line that is not whole
    yet, where there is a next look.
    """

    is_endless = True

    def __init__(self, path: Path, *, settled_seconds: float, is_looked_at_again: bool = True) -> None:
        self._path = path
        self._is_looked_at_again = is_looked_at_again
        self._settled_seconds = settled_seconds
        self._marks: dict[str, Any] = {}
        self.name = str(path.resolve())

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        """What is new. What can't be read as a file is one bad row, until the file changes.

        Where the machine did not give a file, as without rights or from a disk that is away, the next look tries again.
        """
        self._marks = {}
        files = self._files()
        if not self._path.exists():
            _LOG.warning("%s is not there: nothing is taken until it is back", self._path)
        for gone in set(taken.marked()) - {str(file) for file in files}:
            taken.unmark(gone)
        for file in files:
            status, known = self._status_of(file), taken.mark(str(file))
            # Earlier versions noted nothing else.
            known = known if isinstance(known, dict) else {"status": known}
            if status is None or status == known["status"]:
                continue
            read_to = yield from _rows_of(file, known.get("read_to"), is_read_again=self._is_looked_at_again)
            if read_to is not None:
                # If it was written to meanwhile, it has another status at the next look.
                self._marks[str(file)] = {"status": status, "read_to": read_to}

    def marks(self) -> dict[str, Any]:
        return self._marks

    def _files(self) -> list[Path]:
        path = self._path
        try:
            if not path.is_dir() or (path / "state.json").is_file():
                return [path]
            return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and not is_hidden(file))
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}; give rights, or name another") from error

    def _status_of(self, file: Path) -> list[int] | None:
        """Size and time of a file; None if it is not settled, or gone."""
        try:
            status = (file / "state.json" if file.is_dir() else file).stat()
        except OSError:
            return None
        # A time in the future, by a clock that is ahead, must not keep a file away for ever.
        is_settled = abs(time.time() - status.st_mtime) >= self._settled_seconds
        return [status.st_size, status.st_mtime_ns] if is_settled else None


class TaskSplitSource:
    """The tasks of one split of an environment, so many at each look."""

    def __init__(self, environment: Environment, *, split: Split, seed: int, num_tasks: int) -> None:
        self._tasks = EnvironmentTasks(environment, split=split, seed=seed, num_rows=None)
        self._num_tasks = num_tasks
        self._next: int | None = None
        self.name = f"{environment.name}/{split}/{seed}"
        self.is_endless = True

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        """The next tasks. It is over when the environment has no more tasks."""
        start = taken.mark(self.name) or 0
        num_found = 0
        for task in islice(self._tasks.starting_at(start), self._num_tasks):
            num_found += 1
            self._next = start + num_found
            yield FoundRow(task if isinstance(task, BadRow) else ReadRow(task.number, task.where, asked_fields(task)))
        self.is_endless = num_found == self._num_tasks

    def marks(self) -> dict[str, Any]:
        return {} if self._next is None else {self.name: self._next}


def _rows_of(file: Path, read_to: Any, *, is_read_again: bool) -> Generator[FoundRow, None, list[Any] | None]:
    """The rows that are new. Returns how far lines were read, and None where the machine did not give all of it."""
    grown: GrownRows | None = None
    try:
        rows: Iterable[ReadRow | BadRow] = open_rows(file)
        if isinstance(rows, JsonlRows):
            rows = grown = GrownRows(file, ReadTo.of(read_to), is_read_again=is_read_again)
        for row in rows:
            yield FoundRow(row, str(file))
    except ConfigurationError as error:
        yield FoundRow(BadRow(0, str(file), str(error)), str(file))
        cause = error.__cause__
        # pyarrow raises OSError for damaged content too, but without a number.
        if isinstance(cause, OSError) and cause.errno is not None:
            return None
    return [] if grown is None or grown.read_to is None else grown.read_to.noted()
