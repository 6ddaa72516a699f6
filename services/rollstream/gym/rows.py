"""The rows that are asked: each row of the input once a rollout, with its indices and the values of the command line.

They are written to a file before the first one is asked, so that a resume and people know which there should be. A row
travels whole: what it has beyond `responses_create_params` reaches the agent's server and the verifier untouched.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rollstream.gym.names import AGENT, PARAMS, ROLLOUT, TASK
from rollstream.gym.options import DEFAULT
from rollstream.gym.prompts import PromptTemplate
from rollstream.gym.score_table import key_of
from rollstream.gym.transcript import has_output
from rollstream.offline.tasks import CollectTask, RowTasks
from rollstream.process.database import Database
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError, UnusableRowError

Row = dict[str, Any]

_IDS: Final = ("task_id", "problem_id", "instance_id")
_TABLES: Final = """
CREATE TABLE tasks (key BLOB PRIMARY KEY, task INTEGER, rollouts INTEGER) WITHOUT ROWID;
"""
_SHOWN_ROWS: Final = 10
_LARGEST_INDEX: Final = 2**53


class _Places:
    """The index of each row's task, and how many rollouts it has so far: rows that are the same are one task."""

    def __init__(self, tasks: Database) -> None:
        self._tasks = tasks
        self._num_tasks = 0
        self._is_given: bool | None = None

    def of(self, row: Row, repeats: int) -> tuple[int, int]:
        """Its task, and the first of its rollouts. Raises `ConfigurationError` for an index that is none."""
        key = _key(row)
        found = self._tasks.one("SELECT task, rollouts FROM tasks WHERE key = ?", key)
        task, first = (self._new(row.get(TASK)), 0) if found is None else found
        self._tasks.run("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)", key, task, first + repeats)
        return task, first

    def _new(self, given: Any) -> int:
        is_given = given is not None
        if self._is_given is not None and is_given is not self._is_given:
            raise ConfigurationError(f"some rows have {TASK} and others have not: give it to all of them, or to none")
        if is_given and (type(given) is not int or not 0 <= given < _LARGEST_INDEX):
            raise ConfigurationError(f"{TASK} {given!r} of a row is no whole number from 0 on: correct it")
        self._is_given = is_given
        self._num_tasks += 1
        return int(given) if is_given else self._num_tasks - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How rows become rollouts; see `GymCollectOptions`. `repeats`: of each agent, the others' under `_default`."""

    agent_name: str | None = None
    limit: int | None = None
    repeats: Mapping[str, int] = field(default_factory=dict)
    adds_seed: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    template: PromptTemplate | None = None

    def rows(self, source: RowSource) -> Iterator[Row]:
        """All rollouts' rows, in the order of the input. Raises `ConfigurationError` that names each bad row."""
        problems, num_bad = list[str](), 0
        with Database(None, _TABLES) as tasks:
            places = _Places(tasks)
            for row in islice(source, self.limit):
                try:
                    made = self._usable(row)
                except UnusableRowError as error:
                    num_bad += 1
                    if num_bad <= _SHOWN_ROWS:
                        problems.append(f"{row.where}: {error}")
                    continue
                if not num_bad:
                    yield from self._repeated(made, places)
        if num_bad:
            more = f"; and {num_bad - _SHOWN_ROWS} more" if num_bad > _SHOWN_ROWS else ""
            raise ConfigurationError(f"{num_bad} rows of {source.name} can't be asked: {'; '.join(problems)}{more}")

    def _usable(self, row: ReadRow | BadRow) -> Row:
        if isinstance(row, BadRow):
            raise UnusableRowError(row.why)
        fields = row.fields if self.template is None else self.template.filled(row.fields)
        params = fields.get(PARAMS)
        if not isinstance(params, dict):
            raise UnusableRowError(f"no {PARAMS} with an `input`")
        if not isinstance(params.get("input"), str | list) or not params["input"]:
            raise UnusableRowError(f"{PARAMS}.input is neither text nor a list of messages")
        agent = fields.get(AGENT) or ({"name": self.agent_name} if self.agent_name else None)
        if not isinstance(agent, dict) or not isinstance(agent.get("name"), str) or not agent["name"]:
            raise UnusableRowError(f"no {AGENT} with a name: add it, or name one with +agent_name=NAME")
        return {**fields, PARAMS: {**params, **self.params}, AGENT: agent}

    def _repeated(self, row: Row, places: _Places) -> Iterator[Row]:
        agent = row[AGENT]["name"]
        repeats = self.repeats.get(agent, self.repeats.get(DEFAULT, 1))
        task, first = places.of(row, repeats)
        for rollout in range(first, first + repeats):
            params = {**row[PARAMS], "seed": rollout} if self.adds_seed else row[PARAMS]
            yield {**row, PARAMS: params, TASK: task, ROLLOUT: rollout}


def _key(row: Row) -> bytes:
    known = next((row[name] for name in (TASK, *_IDS) if row.get(name) is not None), None)
    said = [row[AGENT]["name"], known] if known is not None else row
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "replace")).digest()


def stored_rollouts(rows: RowSource) -> RowTasks:
    """Rollouts that were collected, as tasks of one sample each. A row that is none raises `ConfigurationError`."""
    return RowTasks(rows, _stored)


def _stored(row: ReadRow) -> CollectTask:
    key_of(row)
    if not isinstance(row.fields.get(PARAMS), dict) or not has_output(row.fields):
        raise ConfigurationError(f"{row.where}: no {PARAMS} and response.output: is it a rollout?")
    return _task(row)


class GymTasks:
    """The rollouts' rows as tasks of one sample each, read from `path`, where they are written when first needed."""

    def __init__(self, source: RowSource, expansion: Expansion, path: Path) -> None:
        self._source = source
        self._expansion = expansion
        self._path = path
        self._written: JsonlRows | None = None
        self.name = source.name

    @property
    def num_rows(self) -> int | None:
        """Number of rollouts; writes the rows, if that was not done."""
        rows = self._rows()
        rows.identity()
        return rows.num_rows

    def identity(self) -> str:
        """That of the input: the options that make rollouts of it are compared by themselves."""
        return self._source.identity()

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        for row in self._rows():
            yield row if isinstance(row, BadRow) else _task(row)

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """All: a file is read from its start."""
        return iter(self)

    def _rows(self) -> JsonlRows:
        if self._written is None:
            with write_rows(self._path, "jsonl") as writer:
                for row in self._expansion.rows(self._source):
                    writer.write(row)
            self._written = JsonlRows(self._path)
        return self._written


def _task(row: ReadRow) -> CollectTask:
    where = f"task {row.fields[TASK]} rollout {row.fields[ROLLOUT]}"
    return CollectTask(
        number=row.number,
        where=where,
        asked=row.fields[PARAMS].get("input"),
        messages=(),
        fields=row.fields,
        stamps={name: row.fields[name] for name in (TASK, ROLLOUT, AGENT)},
    )
