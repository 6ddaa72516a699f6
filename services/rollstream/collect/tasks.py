"""What is asked: the tasks that rows of a file or an environment give, one for each row."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

from pydantic import ValidationError

from rollstream.collect.files.rows import BadRow, ReadRow, RowSource
from rollstream.collect.nulls import without_nulls
from rollstream.environments.protocol import Environment, Split, Task, task_set_of, tasks_from
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message

_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """One task. `asked`: the prompt as in the row, text or a list of messages; `fields`: the row's other columns."""

    number: int
    where: str
    asked: Any
    messages: tuple[Message, ...]
    fields: Mapping[str, Any]
    reference_answer: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


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


class FileTasks:
    """The rows of a file, asked by their column `prompt_key`: text is one user message, a list is a conversation."""

    def __init__(self, rows: RowSource, *, prompt_key: str) -> None:
        self._rows = rows
        self._prompt_key = prompt_key
        self.name = rows.name

    @property
    def num_rows(self) -> int | None:
        """See `TaskSource.num_rows`."""
        return self._rows.num_rows

    def identity(self) -> str:
        """See `TaskSource.identity`."""
        return self._rows.identity()

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        """See `TaskSource.__iter__`."""
        for row in self._rows:
            yield row if isinstance(row, BadRow) else task_of(row, self._prompt_key)

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """See `TaskSource.starting_at`: a file is read from its start."""
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
        """See `TaskSource.__iter__`."""
        number = -1
        for number, task in enumerate(islice(self._environment.tasks(self._split, self._seed), self._wanted)):
            yield self._task(number, task)
        if number < 0:
            raise ConfigurationError(f"environment {self.name} has no tasks in its split {self._split!r}: name another")

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """See `TaskSource.starting_at`. Slow tasks before it are not made again, if the environment can go there."""
        if number == 0:
            yield from self
            return
        found = tasks_from(self._environment, self._split, self._seed, number)
        most = None if self._wanted is None else max(self._wanted - number, 0)
        for place, task in enumerate(islice(found, most), number):
            yield self._task(place, task)

    def _task(self, number: int, task: Task) -> CollectTask:
        return CollectTask(
            number=number,
            where=f"{self.name} task {task.task_id}",
            asked=[_plain_message(message) for message in task.messages],
            messages=task.messages,
            fields={"task_id": task.task_id, "reference_answer": task.reference_answer, **task.metadata},
            reference_answer=task.reference_answer,
            metadata={**task.metadata, "task_id": task.task_id},
        )


def asked_fields(task: CollectTask) -> dict[str, Any]:
    """The task as a row of a file, in whose column `prompt` it is asked."""
    return {"prompt": task.asked, **task.fields}


def task_of(row: ReadRow, prompt_key: str) -> CollectTask | BadRow:
    """The task of a row, or why it has none."""
    if prompt_key not in row.fields:
        return BadRow(row.number, row.where, f"it has no column {prompt_key!r}, only {_short(sorted(row.fields))}")
    asked = row.fields[prompt_key]
    messages = _messages(asked)
    if isinstance(messages, str):
        return BadRow(row.number, row.where, f"its column {prompt_key!r} {messages}")
    others = {name: value for name, value in row.fields.items() if name != prompt_key}
    return CollectTask(
        number=row.number,
        where=row.where,
        asked=asked,
        messages=messages,
        fields=others,
        reference_answer=_reference_answer(others),
        metadata={name: _text(value) for name, value in others.items() if value is not None},
    )


def _messages(asked: Any) -> tuple[Message, ...] | str:
    """The messages; or what is wrong with the prompt."""
    if isinstance(asked, str):
        return (Message(role="user", content=asked),) if asked else "is empty"
    if asked is None:
        return "is null"
    if not isinstance(asked, list):
        return f"must be text or a list of messages, got {_short(asked)}"
    if not asked:
        return "is a list without messages"
    messages = []
    for number, message in enumerate(asked):
        try:
            messages.append(Message.model_validate(without_nulls(message)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in (number, *first["loc"]))
            return f"is no list of messages with role and content as text: message {place}: {first['msg']}"
    return tuple(messages)


def _reference_answer(fields: Mapping[str, Any]) -> str | None:
    """What a verifier compares with, from the column of one of the formats in use; of verl's it is within another."""
    rule = fields.get("reward_model")
    named = [fields.get(name) for name in ("reference_answer", "ground_truth", "answer")]
    named.append(rule.get("ground_truth") if isinstance(rule, Mapping) else None)
    return next((_text(value) for value in named if value is not None), None)


def _plain_message(message: Message) -> dict[str, Any]:
    return message.model_dump(exclude_defaults=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
