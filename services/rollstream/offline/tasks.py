"""What is asked: the tasks that rows of a file or an environment give, one for each row."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

from rollstream.environments.protocol import Environment, Split, Task, task_set_of, tasks_from
from rollstream.rows.conversation import PROMPT, REFERENCE, asked_of, messages_of, metadata_of, reference_of
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.prompt import Message, more_than_a_record_holds


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """One task. `asked`: the prompt as in the row, text or a list of messages; `fields`: the row's other columns.

    `stamps`: what a line about it says beyond its number.
    """

    number: int
    where: str
    asked: Any
    messages: tuple[Message, ...]
    fields: Mapping[str, Any]
    reference_answer: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    stamps: Mapping[str, Any] = field(default_factory=dict)


class TaskSource(Protocol):
    """Tasks in the same order each time; a bad row has its number too."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of tasks, bad rows included; None as long as it is not known."""
        ...

    def identity(self) -> str:
        """A name that other tasks do not have."""
        ...

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        """The tasks, with constant memory."""
        ...

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """The tasks from `number` on. Those before it may come too, where it costs the same to pass over them."""
        ...


class RowTasks:
    """The rows of a file. `as_task` makes the task of one, or says why it has none."""

    def __init__(self, rows: RowSource, as_task: Callable[[ReadRow], CollectTask | BadRow]) -> None:
        self._rows = rows
        self._as_task = as_task
        self.name = rows.name

    @property
    def num_rows(self) -> int | None:
        return self._rows.num_rows

    def identity(self) -> str:
        return self._rows.identity()

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        for row in self._rows:
            yield row if isinstance(row, BadRow) else self._as_task(row)

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """All: a file is read from its start."""
        return iter(self)


class EnvironmentTasks:
    """The first `num_rows` tasks of an environment."""

    def __init__(self, environment: Environment, *, split: Split, seed: int, num_rows: int | None) -> None:
        self._environment = environment
        self._split: Split = split
        self._seed = seed
        self._wanted = num_rows
        self.name = environment.name
        self.num_rows = num_rows

    def identity(self) -> str:
        """The environment's name and the start of a SHA-256 of its tasks, or of what decides them if it says that."""
        known = task_set_of(self._environment, self._split, self._seed)
        if known is not None:
            return known.identity
        digest = hashlib.sha256()
        for task in self:
            asked = (task.asked, task.fields) if isinstance(task, CollectTask) else task.why
            digest.update(json.dumps(asked).encode() + b"\n")
        return f"{self.name}@{digest.hexdigest()[:12]}"

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        number = -1
        for number, task in enumerate(islice(self._environment.tasks(self._split, self._seed), self._wanted)):
            yield self._task(number, task)
        if number < 0:
            raise ConfigurationError(f"environment {self.name} has no tasks in its split {self._split!r}: name another")

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """Slow tasks before it are not made again, if the environment can go there."""
        if number == 0:
            yield from self
            return
        found = tasks_from(self._environment, self._split, self._seed, number)
        most = None if self._wanted is None else max(self._wanted - number, 0)
        for place, task in enumerate(islice(found, most), number):
            yield self._task(place, task)

    def _task(self, number: int, task: Task) -> CollectTask | BadRow:
        found = CollectTask(
            number=number,
            where=f"{self.name} task {task.task_id}",
            asked=[_plain_message(message) for message in task.messages],
            messages=task.messages,
            fields={"task_id": task.task_id, REFERENCE: task.reference_answer, **task.metadata},
            reference_answer=task.reference_answer,
            metadata={**task.metadata, "task_id": task.task_id},
        )
        return _recordable(found)


def asked_fields(task: CollectTask) -> dict[str, Any]:
    """The task as a row of a file, in whose column `prompt` it is asked."""
    return {PROMPT: task.asked, **task.fields}


def file_tasks(rows: RowSource, prompt_key: str) -> RowTasks:
    """Rows that are asked by their column `prompt_key`."""
    return RowTasks(rows, partial(task_of, prompt_key=prompt_key))


def task_of(row: ReadRow, prompt_key: str) -> CollectTask | BadRow:
    """The task of a row, or why it has none: text is one user message, a list is a conversation."""
    try:
        messages = messages_of(row.fields, prompt_key)
    except UnusableRowError as error:
        return BadRow(row.number, row.where, str(error))
    name, asked = asked_of(row.fields, prompt_key)
    others = {column: value for column, value in row.fields.items() if column != name}
    task = CollectTask(
        number=row.number,
        where=row.where,
        asked=asked,
        messages=messages,
        fields=others,
        reference_answer=reference_of(others),
        metadata=metadata_of(others, lambda name: False),
    )
    return _recordable(task)


def _recordable(task: CollectTask) -> CollectTask | BadRow:
    """The task, unless it has more parts than the record that agents are asked with."""
    why = more_than_a_record_holds(messages=task.messages, columns=task.metadata)
    return task if why is None else BadRow(task.number, task.where, why)


def _plain_message(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude_defaults=True)
