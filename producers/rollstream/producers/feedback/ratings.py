"""The feedback of the store: one row for each record that may count, with the record itself until its answer is there.

Feedback that comes again has the same id, and counts once, at its first place.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rollstream.bus.message import KafkaMessage
from rollstream.process.database import Database
from rollstream.producers.feedback.answers import Answer
from rollstream.schemas.feedback import FeedbackGiven, TargetKind

_ROW_BYTES: Final = 600
"""What a row takes beside the record, with its indexes."""


class Rating(NamedTuple):
    """What one record says of an answer, and when the broker appended it."""

    kind: TargetKind
    appended_ms: int
    metric: str
    client: str
    number: float


class Unmatched(NamedTuple):
    """Feedback without an answer, and the message that it came in, for a dead letter."""

    message: KafkaMessage
    is_of_other_tenant: bool


class RatingRows:
    """Reads and changes the feedback of the store."""

    TABLES: Final = """
CREATE TABLE IF NOT EXISTS ratings (
    partition INTEGER, offset INTEGER, kind TEXT NOT NULL, target TEXT NOT NULL, choice INTEGER NOT NULL,
    metric TEXT NOT NULL, client TEXT NOT NULL, tenant TEXT NOT NULL, feedback_id TEXT NOT NULL, number REAL NOT NULL,
    appended_ms INTEGER NOT NULL, found TEXT NOT NULL, value BLOB, PRIMARY KEY (partition, offset)
);
CREATE UNIQUE INDEX IF NOT EXISTS ratings_by_id ON ratings (feedback_id, client, tenant);
CREATE INDEX IF NOT EXISTS ratings_by_target ON ratings (target, kind);
CREATE INDEX IF NOT EXISTS ratings_by_age ON ratings (found, appended_ms);
"""

    def __init__(self, database: Database) -> None:
        self._database = database
        found = database.one(f"SELECT count(*) * {_ROW_BYTES} + coalesce(sum(length(value)), 0) FROM ratings")
        assert found is not None
        self.num_bytes = int(found[0])
        """About what feedback takes."""

    def add(self, feedback: FeedbackGiven, message: KafkaMessage) -> bool:
        """Add feedback that has a number and names a target; whether it is new."""
        assert feedback.target is not None
        kind, target = feedback.target
        value = message.value or b""
        is_new = self._database.run(
            "INSERT OR IGNORE INTO ratings VALUES (?,?,?,?,?,?,?,?,?,?,?,'nothing',?)",
            message.partition, message.offset, kind, target, feedback.choice or 0, feedback.metric, feedback.client,
            feedback.tenant, feedback.feedback_id, feedback.number, message.timestamp_ms, value,
        ) > 0  # fmt: skip
        self.num_bytes += (_ROW_BYTES + len(value)) * is_new
        return is_new

    def of(self, answer: Answer) -> list[Rating]:
        """What its own tenant said of an answer or its session, in the order of time."""
        rows = self._database.read(
            f"SELECT kind, appended_ms, metric, client, number FROM ratings WHERE tenant = ? AND ({_NAMES}) "
            "ORDER BY appended_ms, partition, offset",
            answer.tenant, *_names(answer),
        )  # fmt: skip
        return [Rating(*row) for row in rows]

    def match(self, answer: Answer) -> list[int]:
        """Note that feedback on this answer has found it; the append times of what had found none before."""
        with self._database.transaction():
            rows = list(
                self._database.read(
                    f"SELECT partition, offset, appended_ms, tenant = ?, length(value) FROM ratings "
                    f"WHERE found <> 'answer' AND ({_NAMES})",
                    answer.tenant, *_names(answer),
                )
            )  # fmt: skip
            for partition, offset, _, is_own, num_bytes in rows:
                change = "found = 'answer', value = NULL" if is_own else "found = 'other_tenant'"
                self._database.run(f"UPDATE ratings SET {change} WHERE partition = ? AND offset = ?", partition, offset)
                self.num_bytes -= (num_bytes or 0) * is_own
        return [appended_ms for _, _, appended_ms, is_own, _ in rows if is_own]

    def unmatched(self, before_ms: int, limit: int, topic: str) -> list[Unmatched]:
        """Feedback from before then without an answer, the oldest first. `topic`: where it lies."""
        rows = self._database.read(
            "SELECT partition, offset, target, appended_ms, value, found FROM ratings WHERE found <> 'answer' "
            "AND appended_ms < ? ORDER BY appended_ms LIMIT ?",
            before_ms, limit,
        )  # fmt: skip
        return [
            Unmatched(
                KafkaMessage(topic, partition, offset, target.encode(), value, timestamp_ms=appended_ms),
                found == "other_tenant",
            )
            for partition, offset, target, appended_ms, value, found in rows
        ]

    def oldest_unmatched_ms(self) -> int | None:
        """When the oldest feedback without an answer came."""
        found = self._database.one("SELECT min(appended_ms) FROM ratings WHERE found <> 'answer'")
        return None if found is None else found[0]

    def forget(self, messages: list[KafkaMessage]) -> None:
        """Forget feedback that is given up."""
        for message in messages:
            self._database.run(
                "DELETE FROM ratings WHERE partition = ? AND offset = ?", message.partition, message.offset
            )
            self.num_bytes -= _ROW_BYTES + len(message.value or b"")

    def forget_matched(self, before_ms: int, limit: int) -> int:
        """Forget feedback from before then that found its answer; how much."""
        count = self._database.run(
            "DELETE FROM ratings WHERE (partition, offset) IN (SELECT partition, offset FROM ratings "
            "WHERE found = 'answer' AND appended_ms < ? ORDER BY appended_ms LIMIT ?)",
            before_ms, limit,
        )  # fmt: skip
        self.num_bytes -= _ROW_BYTES * count
        return count


_NAMES: Final = (
    "kind = 'response_id' AND target = ? AND choice = ? OR kind = 'rollout_id' AND target = ? "
    "OR kind = 'session' AND target = ? AND choice = ?"
)


def _names(answer: Answer) -> Iterator[str | int]:
    yield from (answer.response_id, answer.choice, answer.rollout_id, answer.session, answer.choice)
