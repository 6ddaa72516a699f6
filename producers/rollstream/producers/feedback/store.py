"""What the producer of feedback knows, in an SQLite file: answers of the window, feedback on them, and how far it read.

The file saves work and nothing else: all of it comes from the topics, and is read again from them when the file is
lost, damaged, or of other topics. Then the same answers settle with the same rewards, and the ledger says which of them
closed. What is read and how far it was read are committed together, so that a killed process repeats nothing.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rollstream.bus.message import Partition
from rollstream.process.database import Database, move_aside
from rollstream.producers.feedback import metrics
from rollstream.producers.feedback.answers import AnswerRows
from rollstream.producers.feedback.ratings import RatingRows
from rollstream.schemas.errors import DamagedFileError

_LOG = logging.getLogger(__name__)

_FORM: Final = "1"
"""Which tables there are; a file of another form is begun anew."""
_FACTS: Final = "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
_OFFSETS: Final = """
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""
_TABLES: Final = _FACTS + _OFFSETS + AnswerRows.TABLES + RatingRows.TABLES
# Of the whole. Feedback costs its sender little, and must not push all answers out.
_SHARE_OF_RATINGS: Final = 0.25


class FeedbackStore:
    """Answers, feedback, and how far both topics are read. For one thread; raises what `Database` raises."""

    def __init__(self, database: Database, most_bytes: int) -> None:
        self._database = database
        self._most_bytes = most_bytes
        self.answers = AnswerRows(database)
        self.ratings = RatingRows(database)
        metrics.STORE_LIMIT.set(most_bytes)

    def fact(self, name: str) -> Any:
        """A JSON value; None if there is none."""
        found = self._database.one("SELECT value FROM facts WHERE name = ?", name)
        return None if found is None else json.loads(found[0])

    def note_fact(self, name: str, value: Any) -> None:
        """Note a JSON value."""
        self._database.run("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, json.dumps(value))

    def offsets(self) -> dict[Partition, int]:
        """Where to read on in each partition of which anything was read."""
        rows = self._database.read("SELECT topic, partition, offset FROM offsets")
        return {(topic, partition): offset for topic, partition, offset in rows}

    def note_offsets(self, offsets: Mapping[Partition, int]) -> None:
        """Note where to read on."""
        rows = [(*partition, offset) for partition, offset in offsets.items()]
        self._database.run_many("INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)", rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes of the block, or none."""
        with self._database.transaction():
            yield

    def is_full(self) -> bool:
        """Whether it takes more than it may; exports what it takes."""
        num_bytes = self._database.num_bytes
        metrics.STORE_BYTES.set(num_bytes)
        return num_bytes > self._most_bytes

    @property
    def is_full_of_ratings(self) -> bool:
        """Whether feedback takes more than its part, so that it must go first."""
        return self.ratings.num_bytes > self._most_bytes * _SHARE_OF_RATINGS


@contextmanager
def opened(path: Path, identity: Mapping[str, str], most_bytes: int) -> Iterator[FeedbackStore]:
    """The store at `path`, begun anew if it is damaged or of other topics. `identity`: their cluster and their ids.

    Raises `ConfigurationError` if the file belongs to another process or program, or can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    database = _database(path)
    try:
        store = FeedbackStore(database, most_bytes)
        expected = {"form": _FORM, **identity}
        found = store.fact("identity")
        if found is not None and found != expected:
            _LOG.warning("%s is of other topics: it is begun anew", path)
            database.close()
            move_aside(path)
            database = Database(path, _TABLES)
            store, found = FeedbackStore(database, most_bytes), None
        if found is None:
            metrics.REBUILT.inc()
            _LOG.info("%s holds nothing yet: it is made from the topics", path)
            store.note_fact("identity", expected)
        yield store
    finally:
        database.close()


def _database(path: Path) -> Database:
    try:
        return Database(path, _TABLES)
    except DamagedFileError as error:
        aside = move_aside(path)
        _LOG.warning("it is begun anew, and what was there is %s now: %s", aside, error)
        return Database(path, _TABLES)
