"""What a run of the actor has done, in an SQLite file in its directory: so a later process goes on after kill -9.

Of each group in hand the finished steps of its samples are kept, and no finished step is asked again. Of a group that
ended only its outcome is kept. A group is written to the stream before that is noted, so what lies in the stream behind
the noted position was published, and is not published again.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rollstream.agents.journal import Earlier, SampleJournal, earlier_of
from rollstream.process.database import Database
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.topics import PROGRESS

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    number INTEGER PRIMARY KEY, group_id TEXT NOT NULL, rollout TEXT NOT NULL, key TEXT NOT NULL, attempt TEXT NOT NULL,
    record BLOB NOT NULL, UNIQUE (key, attempt)
);
CREATE INDEX IF NOT EXISTS steps_of_rollout ON steps (rollout);
CREATE INDEX IF NOT EXISTS steps_of_group ON steps (group_id);
CREATE TABLE IF NOT EXISTS requeued (group_id TEXT PRIMARY KEY, tries INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (
    topic TEXT, group_id TEXT, row INTEGER NOT NULL, failure TEXT, message TEXT, PRIMARY KEY (topic, group_id)
) WITHOUT ROWID;
"""


class FailedGroup(NamedTuple):
    """A group that nothing was published of."""

    topic: str
    group_id: str
    row: int
    failure: str
    message: str


class ActorJournal:
    """The file. For one thread, and one process at a time."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _TABLES)
        self._codec = AvroCodec(PROGRESS)

    def close(self) -> None:
        self._database.close()

    @property
    def token(self) -> str:
        """What tells the groups of this journal from those of another one that writes to the same topic."""
        if (known := self.fact("token")) is None:
            known = secrets.token_hex(8)
            self.note_fact("token", known)
        return known

    def num_requeued(self, group_id: str) -> int:
        """How often a group has waited for another try, also in earlier processes."""
        found = self._database.one("SELECT tries FROM requeued WHERE group_id = ?", group_id)
        return 0 if found is None else int(found[0])

    def requeued(self, group_id: str) -> int:
        """Note that it waits once more; returns how often it has."""
        tries = self.num_requeued(group_id) + 1
        self._database.run("INSERT OR REPLACE INTO requeued VALUES (?, ?)", group_id, tries)
        return tries

    def fact(self, name: str) -> str | None:
        """What was noted under this name."""
        found = self._database.one("SELECT value FROM facts WHERE name = ?", name)
        return None if found is None else str(found[0])

    def note_fact(self, name: str, value: str) -> None:
        self._database.run("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)

    def position(self, topic: str) -> int:
        """Up to where of the stream every group is noted."""
        return int(self.fact(f"position of {topic}") or 0)

    def has_ended(self, topic: str, group_id: str) -> bool:
        """Whether the group was published, or has failed."""
        found = self._database.one("SELECT 1 FROM ended WHERE topic = ? AND group_id = ?", topic, group_id)
        return found is not None

    def published(self, topic: str, group_id: str, row: int, position: int) -> None:
        """Note that the group lies in the stream, before `position`."""
        with self._database.transaction():
            self.note_fact(f"position of {topic}", str(position))
            self._end(topic, group_id, row)

    def failed(self, topic: str, group_id: str, row: int, failure: str, message: str) -> None:
        """Note that nothing of the group is published, and why."""
        with self._database.transaction():
            self._end(topic, group_id, row, failure, message)

    def failures(self) -> Iterator[FailedGroup]:
        """The groups that failed, in the order of their rows."""
        rows = self._database.read(
            "SELECT topic, group_id, row, failure, message FROM ended WHERE failure IS NOT NULL ORDER BY topic, row"
        )
        return (FailedGroup(*row) for row in rows)

    def num_ended(self, topic: str) -> tuple[int, int]:
        """Groups that were published, and groups that failed."""
        found = self._database.one("SELECT count(*), count(failure) FROM ended WHERE topic = ?", topic)
        total, num_failed = (0, 0) if found is None else (int(found[0]), int(found[1]))
        return total - num_failed, num_failed

    def sample(self, group_id: str, index: int) -> SampleJournal:
        """The journal of a new attempt at a sample, with what earlier attempts left."""
        rollout = rollout_id(group_id, index)

        async def keep(progress: TurnProgress, _is_urgent: bool) -> None:
            self._database.run(
                "INSERT OR REPLACE INTO steps (group_id, rollout, key, attempt, record) VALUES (?, ?, ?, ?, ?)",
                group_id, rollout, progress.key, progress.attempt_id, self._codec.encode(progress),
            )  # fmt: skip

        return SampleJournal(rollout, new_attempt_id(), "rc_actor", keep, self._earlier(rollout), takes_text=True)

    def _earlier(self, rollout: str) -> Earlier:
        records = self._database.read("SELECT record FROM steps WHERE rollout = ? ORDER BY number", rollout)
        return earlier_of(one for (record,) in records if (one := self._read(record)) is not None)

    def _read(self, record: bytes) -> TurnProgress | None:
        """A record that another version wrote, and this one can't read, is a step that is asked again."""
        try:
            return self._codec.decode(record)
        except DecodeError:
            return None

    def _end(self, topic: str, group_id: str, row: int, failure: str | None = None, message: str | None = None) -> None:
        self._database.run(
            "INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?, ?)", topic, group_id, row, failure, message
        )
        self._database.run("DELETE FROM steps WHERE group_id = ?", group_id)
        self._database.run("DELETE FROM requeued WHERE group_id = ?", group_id)
