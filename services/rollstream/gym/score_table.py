"""The numbers of rollouts, by agent, field and task, in a scratch database: memory does not grow with their number."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from rollstream.gym.names import AGENT, ROLLOUT, TASK
from rollstream.process.database import Database
from rollstream.rows.row import ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError

REWARD: Final = "reward"
ANSWER: Final = "extracted_answer"
_COMPONENTS: Final = "reward_components"
_FIGURES: Final = ("tool_calls_made", "output_tokens", "input_tokens")
_MAX_FIELDS: Final = 1000
_MAX_NAME: Final = 300
_LARGEST: Final = 1e100
_SHOWN_KEYS: Final = 10
_TABLES: Final = """
CREATE TABLE rollouts (agent TEXT, task INTEGER, rollout INTEGER, answer TEXT, PRIMARY KEY (agent, task, rollout))
    WITHOUT ROWID;
CREATE TABLE scores (agent TEXT, field TEXT, task INTEGER, rollout INTEGER, value REAL,
    PRIMARY KEY (agent, field, task, rollout)) WITHOUT ROWID;
CREATE TABLE expected (agent TEXT, task INTEGER, rollout INTEGER, PRIMARY KEY (agent, task, rollout)) WITHOUT ROWID;
"""
_MISSING: Final = "SELECT * FROM expected EXCEPT SELECT agent, task, rollout FROM rollouts"

Key = tuple[str, int, int]


class ScoreTable:
    """Numeric fields of rollouts: those of the top level, of `reward_components`, and of what we count ourselves.

    A boolean counts as 0 or 1; null and what is no finite number is left out, not 0.
    """

    def __init__(self) -> None:
        self._database = Database(None, _TABLES)
        self._fields: set[str] = set()
        self.has_answers = False

    def close(self) -> None:
        """Delete the database."""
        self._database.close()

    def read(self, rows: RowSource) -> None:
        """Add all rollouts of a file. Raises `ConfigurationError` for a row that is none, or that was there before."""
        for row in rows:
            if not isinstance(row, ReadRow):
                raise ConfigurationError(f"{row.where}: {row.why}; remove that line")
            self.add(key_of(row), row.fields)

    def expect(self, rows: RowSource) -> None:
        """Note which rollouts there should be, of a file of materialized inputs."""
        for row in rows:
            if isinstance(row, ReadRow):
                self._database.run("INSERT OR IGNORE INTO expected VALUES (?, ?, ?)", *key_of(row))

    def add(self, key: Key, row: Mapping[str, Any]) -> None:
        """Add the numbers of a rollout. Raises `ConfigurationError` if it was added before."""
        self.has_answers = self.has_answers or ANSWER in row
        found = row.get(ANSWER)
        answer = None if found is None else json.dumps(found, sort_keys=True)
        if not self._database.run("INSERT OR IGNORE INTO rollouts VALUES (?, ?, ?, ?)", *key, answer):
            agent, task, rollout = key
            raise ConfigurationError(f"rollout {rollout} of task {task} of {agent} is there twice: leave one file out")
        agent, task, rollout = key
        for field, value in self._numbers(row):
            self._database.run(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?)", agent, field, task, rollout, value
            )

    def agents(self) -> dict[str, tuple[int, int]]:
        """Numbers of tasks and of rollouts of each agent."""
        query = "SELECT agent, count(DISTINCT task), count(*) FROM rollouts GROUP BY agent ORDER BY agent"
        return {agent: (tasks, rollouts) for agent, tasks, rollouts in self._database.read(query)}

    def fields(self, agent: str) -> list[str]:
        """The fields with numbers."""
        query = "SELECT DISTINCT field FROM scores WHERE agent = ? ORDER BY field"
        return [field for (field,) in self._database.read(query, agent)]

    def values(self, agent: str, field: str) -> Iterator[float]:
        """All numbers of a field, ascending."""
        query = "SELECT value FROM scores WHERE agent = ? AND field = ? ORDER BY value"
        return (value for (value,) in self._database.read(query, agent, field))

    def by_task(self, agent: str) -> Iterator[tuple[int, dict[str, list[float]]]]:
        """Each task with the numbers of each field, in the order of its rollouts."""
        query = "SELECT task, field, value FROM scores WHERE agent = ? ORDER BY task, field, rollout"
        for task, found in groupby(self._database.read(query, agent), key=lambda row: int(row[0])):
            fields: dict[str, list[float]] = {}
            for _, field, value in found:
                fields.setdefault(field, []).append(value)
            yield task, fields

    def rewards(self, agent: str) -> Iterator[list[tuple[float, str | None]]]:
        """Of each task the rewards of its rollouts, in their order, each with its answer; None for no answer."""
        query = (
            "SELECT task, value, answer FROM scores JOIN rollouts USING (agent, task, rollout) "
            "WHERE agent = ? AND field = ? ORDER BY task, rollout"
        )
        for _, found in groupby(self._database.read(query, agent, REWARD), key=lambda row: row[0]):
            yield [(value, answer) for _, value, answer in found]

    def missing(self) -> dict[tuple[str, int], int]:
        """How many expected rollouts of each agent and task are not there."""
        query = f"SELECT agent, task, count(*) FROM ({_MISSING}) GROUP BY agent, task"
        return {(agent, task): count for agent, task, count in self._database.read(query)}

    def shown_missing(self) -> list[str]:
        """Some of them, for messages."""
        found = self._database.read(f"{_MISSING} LIMIT ?", _SHOWN_KEYS)
        return [f"task {task} rollout {rollout}" for _, task, rollout in found]

    def _numbers(self, row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        for field, value in _named(row):
            is_number = isinstance(value, int | float) and abs(value) <= _LARGEST
            if not is_number or len(field) > _MAX_NAME:
                continue
            if field not in self._fields:
                if len(self._fields) >= _MAX_FIELDS:
                    continue
                self._fields.add(field)
            yield field, float(value)


def key_of(row: ReadRow) -> Key:
    """Agent, task and rollout of a row. Raises `ConfigurationError` if it does not say them."""
    task, rollout, agent = row.fields.get(TASK), row.fields.get(ROLLOUT), row.fields.get(AGENT)
    name = agent.get("name") if isinstance(agent, dict) else None
    for index in (task, rollout):
        if type(index) is not int or not 0 <= index < 2**53:
            raise ConfigurationError(f"{row.where}: no {TASK} and {ROLLOUT}: is it a file of ng_collect_rollouts?")
    if not isinstance(name, str):
        raise ConfigurationError(f"{row.where}: no {AGENT} with a name: is it a file of ng_collect_rollouts?")
    assert isinstance(task, int)
    assert isinstance(rollout, int)
    return name, task, rollout


def _named(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if not name.startswith("_ng_"):
            yield name, value
    components, metadata = row.get(_COMPONENTS), row.get("metadata")
    if isinstance(components, dict):
        yield from ((f"{_COMPONENTS}/{name}", value) for name, value in components.items())
    if isinstance(metadata, dict):
        yield from ((f"metadata/{name}", metadata.get(name)) for name in _FIGURES)
