"""The answers of the store: one row each, and the encoded record beside it until it is published or left out.

An answer is `waiting` for feedback, `settled` with a reward, `published` as a group of one, and `closed`: trained on,
or not for a reason.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rollstream.process.database import Database
from rollstream.producers.feedback.served_answers import JoinedReward
from rollstream.producers.feedback.settling import AnswerTimes, Judgement

_FIELDS: Final = (
    "id, group_id, rollout_id, response_id, choice, session, tenant, appended_ms, finished_ms, ends_ms, components"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of a served answer without its body. `id` is its row's number, 0 before it has one."""

    id: int = 0
    group_id: str
    rollout_id: str
    response_id: str
    choice: int
    session: str
    tenant: str
    finished_ms: int
    times: AnswerTimes

    @property
    def appended_ms(self) -> int:
        return self.times.appended_ms


class SettledAnswer(NamedTuple):
    """An answer that is to be published. `version`: the oldest weights that sampled a token of it."""

    id: int
    group_id: str
    version: int
    ends_ms: int
    num_bytes: int


class AnswerRows:
    """Reads and changes the answers of the store."""

    TABLES: Final = """
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY, group_id TEXT NOT NULL UNIQUE, rollout_id TEXT NOT NULL UNIQUE, response_id TEXT NOT NULL,
    choice INTEGER NOT NULL, session TEXT NOT NULL, tenant TEXT NOT NULL, version INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL, ends_ms INTEGER NOT NULL, components TEXT NOT NULL,
    state TEXT NOT NULL, due_ms INTEGER, outcome TEXT, reward REAL, settled_ms INTEGER, given TEXT,
    is_on_scored INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS answers_by_response ON answers (response_id);
CREATE INDEX IF NOT EXISTS answers_by_session ON answers (session, tenant, finished_ms);
CREATE INDEX IF NOT EXISTS answers_by_state ON answers (state, due_ms);
CREATE INDEX IF NOT EXISTS answers_by_age ON answers (state, appended_ms);
CREATE INDEX IF NOT EXISTS answers_by_end ON answers (state, ends_ms);
CREATE TABLE IF NOT EXISTS bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, answer: Answer, version: int, body: bytes) -> Answer | None:
        """Add an answer that waits; None if it is there already."""
        with self._database.transaction():
            is_new = self._insert(answer, version, "waiting", None)
            found = self._database.one("SELECT id FROM answers WHERE group_id = ?", answer.group_id) if is_new else None
            if found is None:
                return None
            self._database.run("INSERT INTO bodies VALUES (?, ?)", found[0], body)
        return next(self._answers("WHERE id = ?", found[0]))

    def add_closed(self, answer: Answer, outcome: str) -> bool:
        """Add an answer that never trains, so that feedback finds it; whether it is new."""
        return self._insert(answer, 0, "closed", outcome)

    def _insert(self, answer: Answer, version: int, state: str, outcome: str | None) -> bool:
        return self._database.run(
            "INSERT OR IGNORE INTO answers (group_id, rollout_id, response_id, choice, session, tenant, version, "
            "appended_ms, finished_ms, ends_ms, components, state, outcome) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            answer.group_id, answer.rollout_id, answer.response_id, answer.choice, answer.session, answer.tenant,
            version, answer.appended_ms, answer.finished_ms, answer.times.ends_ms, json.dumps(answer.times.components),
            state, outcome,
        ) > 0  # fmt: skip

    def of_response(self, response_id: str, choice: int) -> list[Answer]:
        return list(self._answers("WHERE response_id = ? AND choice = ?", response_id, choice))

    def of_rollout(self, rollout_id: str) -> list[Answer]:
        return list(self._answers("WHERE rollout_id = ?", rollout_id))

    def of_session(self, session: str, choice: int, limit: int) -> list[Answer]:
        """The newest ones of sessions of this name, of all tenants."""
        where = "WHERE session = ? AND choice = ? ORDER BY finished_ms DESC LIMIT ?"
        return list(self._answers(where, session, choice, limit))

    def is_waiting(self, answer: Answer) -> bool:
        """Whether feedback can still change its reward."""
        return self._database.one("SELECT 1 FROM answers WHERE id = ? AND state = 'waiting'", answer.id) is not None

    def has_other_of_session(self, answer: Answer, *, from_ms: int, to_ms: int, known_ms: int) -> bool:
        """Whether another response of its session ended in that time, and was on the topic by `known_ms`."""
        found = self._database.one(
            "SELECT 1 FROM answers WHERE session = ? AND tenant = ? AND finished_ms BETWEEN ? AND ? "
            "AND appended_ms <= ? AND response_id <> ?",
            answer.session, answer.tenant, from_ms, to_ms, known_ms, answer.response_id,
        )  # fmt: skip
        return found is not None

    def note_due(self, answer: Answer, due_ms: int) -> None:
        """Note when it is to be judged again."""
        self._database.run("UPDATE answers SET due_ms = ? WHERE id = ?", due_ms, answer.id)

    def settle(self, answer: Answer, judgement: Judgement) -> None:
        """Note its reward."""
        self._database.run(
            "UPDATE answers SET state = 'settled', reward = ?, settled_ms = ?, given = ? WHERE id = ?",
            judgement.reward, judgement.at_ms, json.dumps(judgement.values), answer.id,
        )  # fmt: skip

    def close(self, ids: Iterable[int], outcome: str) -> int:
        """Note that answers are done with, and drop their bodies; the number of those that were not before."""
        return sum(self._close("id = ?", number, outcome) for number in ids)

    def close_group(self, group_id: str, outcome: str) -> bool:
        """The same for the answer of a group, if there is one that has another outcome."""
        if not self._close("group_id = ?", group_id, outcome):
            return False
        self._database.run("UPDATE answers SET is_on_scored = 1 WHERE group_id = ?", group_id)
        return True

    def _close(self, which: str, value: int | str, outcome: str) -> int:
        found = self._database.one(f"SELECT id FROM answers WHERE {which} AND outcome IS NOT ?", value, outcome)
        if found is None:
            return 0
        self._database.run("UPDATE answers SET state = 'closed', outcome = ? WHERE id = ?", outcome, found[0])
        self._database.run("DELETE FROM bodies WHERE id = ?", found[0])
        return 1

    def published(self, ids: Sequence[int]) -> None:
        """Note that their groups are on `scored`, which has their bodies now."""
        for number in ids:
            self._database.run("UPDATE answers SET state = 'published', is_on_scored = 1 WHERE id = ?", number)
            self._database.run("DELETE FROM bodies WHERE id = ?", number)

    def due(self, now_ms: int, limit: int) -> list[Answer]:
        """Waiting answers that are to be judged by then, the earliest first."""
        return list(self._answers("WHERE state = 'waiting' AND due_ms <= ? ORDER BY due_ms LIMIT ?", now_ms, limit))

    def next_due_ms(self) -> int | None:
        """When the next answer is to be judged."""
        found = self._database.one("SELECT min(due_ms) FROM answers WHERE state = 'waiting'")
        return None if found is None else found[0]

    def newest_settled(self, limit: int) -> list[SettledAnswer]:
        """Answers to publish, the newest first."""
        rows = self._database.read(
            "SELECT id, group_id, version, ends_ms, length(body) FROM answers JOIN bodies USING (id) "
            "WHERE state = 'settled' ORDER BY appended_ms DESC, id DESC LIMIT ?",
            limit,
        )
        return [SettledAnswer(*row) for row in rows]

    def joined(self, number: int) -> tuple[bytes, JoinedReward]:
        """The body of a settled answer, and what its feedback came to."""
        found = self._database.one(
            "SELECT body, reward, given, settled_ms FROM answers JOIN bodies USING (id) WHERE id = ?", number
        )
        assert found is not None
        body, reward, given, settled_ms = found
        return body, JoinedReward(reward=reward, values=json.loads(given), settled_ms=settled_ms)

    def oldest(self, limit: int) -> list[int]:
        """The oldest answers with a body."""
        rows = self._database.read(
            "SELECT id FROM answers JOIN bodies USING (id) WHERE state IN ('waiting', 'settled') "
            "ORDER BY appended_ms LIMIT ?",
            limit,
        )
        return [number for (number,) in rows]

    def settled_before(self, now_ms: int) -> list[int]:
        """Settled answers whose window has ended."""
        rows = self._database.read("SELECT id FROM answers WHERE state = 'settled' AND ends_ms < ?", now_ms)
        return [number for (number,) in rows]

    def forget_closed(self, now_ms: int, limit: int) -> int:
        """Forget answers that are done with and whose window has ended; how many."""
        return self._database.run(
            "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE state = 'closed' AND ends_ms < ? "
            "ORDER BY ends_ms LIMIT ?)",
            now_ms, limit,
        )  # fmt: skip

    def published_groups(self, *, closed_too: bool) -> list[str]:
        """Groups that are on `scored`, and not closed as far as is known here; or all that were ever there."""
        where = "is_on_scored" if closed_too else "state = 'published'"
        return [group for (group,) in self._database.read(f"SELECT group_id FROM answers WHERE {where}")]

    def knows(self, group_id: str) -> bool:
        return self._database.one("SELECT 1 FROM answers WHERE group_id = ?", group_id) is not None

    def counts(self) -> dict[str, int]:
        """How many answers are in each state, and of those that are done with, how many have each outcome."""
        rows = self._database.read("SELECT coalesce(outcome, state), count(*) FROM answers GROUP BY 1")
        return dict(rows)

    def _answers(self, where: str, *values: int | str) -> Iterator[Answer]:
        for row in self._database.read(f"SELECT {_FIELDS} FROM answers {where}", *values):
            number, group, rollout, response, choice, session, tenant, appended_ms, finished_ms, ends_ms, parts = row
            times = AnswerTimes(appended_ms=appended_ms, ends_ms=ends_ms, components=json.loads(parts))
            yield Answer(
                id=number, group_id=group, rollout_id=rollout, response_id=response, choice=choice, session=session,
                tenant=tenant, finished_ms=finished_ms, times=times,
            )  # fmt: skip
