"""What a command was begun with and what of it is done, in an SQLite file beside its output: the one store for that.

Run again, the same command goes on from there, after kill -9 too; with other options it is refused, since that would
mix two data sets in one. What is noted is committed in batches, so that a killed process loses the last second. Several
jobs may share a file: the batches of a continuous collection do.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rollstream.process.crash_points import crash_point
from rollstream.process.database import Database
from rollstream.schemas.errors import ConfigurationError

TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (job TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (job, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS done (
    job TEXT, row INTEGER, sample INTEGER, attempts INTEGER NOT NULL, is_completed INTEGER NOT NULL,
    noted TEXT NOT NULL, PRIMARY KEY (job, row, sample)
);
"""
_BEGUN_WITH: Final = "begun_with"
INPUT: Final = "input"
"""The option that is compared last."""
_BATCH_NOTES: Final = 64
_BATCH_CHARACTERS: Final = 2**22
_BATCH_SECONDS: Final = 1.0


class Progress:
    """The facts of one job, and its samples that ended: what each gave, or how often it was tried in vain."""

    def __init__(self, database: Database, job: str) -> None:
        self.path = database.path
        self._database = database
        self._job = job
        self._num_waiting = self._num_characters = 0
        self._committed_at = time.monotonic()

    def fact(self, name: str) -> Any:
        """A JSON value; None if there is none."""
        found = self._database.one("SELECT value FROM facts WHERE job = ? AND name = ?", self._job, name)
        return None if found is None else json.loads(found[0])

    def note_facts(self, **facts: Any) -> None:
        """Note JSON values, all or none."""
        rows = [(self._job, name, json.dumps(value, ensure_ascii=False)) for name, value in facts.items()]
        self._database.run_many("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)

    @property
    def begun_with(self) -> dict[str, Any] | None:
        """What the job was begun with; None if it was not begun."""
        found = self.fact(_BEGUN_WITH)
        return None if found is None else dict(found)

    def begin(self, options: Mapping[str, Any], **facts: Any) -> None:
        """Note what the job is begun with, and more facts. What was noted of an earlier one is gone."""
        with self._database.transaction():
            self.clear()
            self.note_facts(**{_BEGUN_WITH: dict(options)}, **facts)

    def refuse_other(self, options: Mapping[str, Any], advice: str) -> None:
        """Raise `ConfigurationError`, with an option that is not as it was when the job was begun, and `advice`."""
        # As JSON gives it back.
        before, now = self.begun_with or {}, json.loads(json.dumps(dict(options)))
        # The engine first: what else differs may follow from it.
        for name in sorted({*before, *now}, key=lambda name: (name == INPUT, name != "engine", name)):
            if before.get(name) != now.get(name):
                was, new = (json.dumps(one.get(name), ensure_ascii=False) for one in (before, now))
                raise ConfigurationError(
                    f"{self.path}: this output was begun with {name} = {was}, now it is {new}: go on with the same, "
                    f"or {advice}"
                )

    def note(self, row: int, sample: int, noted: Mapping[str, Any], *, attempts: int = 1, is_completed: bool) -> None:
        """Note how a sample ended, in place of what is noted of it; it is committed with its batch."""
        # A model or a reward function may give half of a surrogate pair, which UTF-8 has no bytes for.
        text = json.dumps(noted, ensure_ascii=False).encode("utf-8", "replace").decode()
        self._database.begin()
        self._database.run(
            "INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?, ?)",
            self._job, row, sample, attempts, is_completed, text,
        )  # fmt: skip
        self._num_waiting += 1
        self._num_characters += len(text)
        if self._num_waiting >= _BATCH_NOTES or self._num_characters >= _BATCH_CHARACTERS:
            self.commit()

    def commit_if_due(self) -> None:
        """Commit what has waited for a second; called now and then, for slow samples."""
        if time.monotonic() - self._committed_at >= _BATCH_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Commit all that waits."""
        if self._num_waiting:
            self._num_waiting = self._num_characters = 0
            self._database.commit()
            crash_point("progress_committed")
        self._committed_at = time.monotonic()

    def to_ask(self, row: int, num_samples: int, max_attempts: int) -> dict[int, int]:
        """The samples of a row that are not completed, and were tried less than `max_attempts` times: how often."""
        query = "SELECT sample, attempts, is_completed FROM done WHERE job = ? AND row = ?"
        known = {
            sample: (attempts, is_done) for sample, attempts, is_done in self._database.read(query, self._job, row)
        }
        tried = ((sample, *known.get(sample, (0, False))) for sample in range(num_samples))
        return {sample: attempts for sample, attempts, is_done in tried if not is_done and attempts < max_attempts}

    def first_to_ask(self, num_samples: int, max_attempts: int) -> int:
        """The first row with a sample to ask; beyond those that are known, the next one."""
        query = (
            "SELECT row FROM done WHERE job = ? AND (is_completed OR attempts >= ?) "
            "GROUP BY row HAVING count(*) = ? ORDER BY row"
        )
        first = 0
        for (row,) in self._database.read(query, self._job, max_attempts, num_samples):
            if row != first:
                break
            first += 1
        return first

    def of_row(self, row: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The samples of a row that ended, in their order: number, attempts, what was noted."""
        query = "SELECT sample, attempts, noted FROM done WHERE job = ? AND row = ? ORDER BY sample"
        for sample, attempts, noted in self._database.read(query, self._job, row):
            yield sample, attempts, json.loads(noted)

    def each_row(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All rows and what was noted, in their order, of a job with one sample a row."""
        for row, noted in self._database.read("SELECT row, noted FROM done WHERE job = ? ORDER BY row", self._job):
            yield row, json.loads(noted)

    def num_ended(self, *, is_completed: bool | None = None) -> int:
        """Samples that ended; or only those that are completed, or are not."""
        query = "SELECT count(*) FROM done WHERE job = ? AND (? IS NULL OR is_completed = ?)"
        found = self._database.one(query, self._job, is_completed, is_completed)
        return 0 if found is None else int(found[0])

    @property
    def last_row(self) -> int:
        """The highest row of which something ended; -1 if there is none."""
        found = self._database.one("SELECT coalesce(max(row), -1) FROM done WHERE job = ?", self._job)
        return -1 if found is None else int(found[0])

    def forget_attempts(self) -> None:
        """Note of what was tried in vain that it was never tried."""
        self._database.run("UPDATE done SET attempts = 0 WHERE job = ? AND NOT is_completed", self._job)

    def finish(self, *, keeps_samples: bool, **facts: Any) -> None:
        """Note that the output is written, and forget the samples unless some are to be asked again."""
        with self._database.transaction():
            self.note_facts(**facts)
            if not keeps_samples:
                self.forget_samples()

    def forget_samples(self) -> None:
        """Forget how samples ended: the output has them."""
        self._database.run("DELETE FROM done WHERE job = ?", self._job)

    def clear(self) -> None:
        """Forget the job."""
        with self._database.transaction():
            self.forget_samples()
            self._database.run("DELETE FROM facts WHERE job = ?", self._job)


@contextmanager
def progress_at(path: Path, job: str, *, replaces_damaged: bool = False) -> Iterator[Progress]:
    """The progress of `job` in the file at `path`, which is removed at the end if no job is noted there.

    Raises what `Database` raises; with `replaces_damaged` a file that is no database is begun anew.
    """
    if replaces_damaged:
        _remove_damaged(path)
    database, is_empty = Database(path, TABLES), False
    try:
        progress = Progress(database, job)
        yield progress
    finally:
        try:
            progress.commit()
            is_empty = database.one("SELECT 1 FROM facts") is None
        finally:
            database.close()
            if is_empty:
                path.unlink(missing_ok=True)


def begun_input(path: Path, job: str) -> str:
    """The identity of the input that `job` in the file at `path` was begun with; "" if it was not begun."""
    if not path.exists():
        return ""
    with Database(path, TABLES) as database:
        return str((Progress(database, job).begun_with or {}).get(INPUT, ""))


def _remove_damaged(path: Path) -> None:
    try:
        if path.exists():
            Database(path, TABLES).close()
    except ConfigurationError:
        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
        path.unlink(missing_ok=True)
