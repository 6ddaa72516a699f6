"""The interface of an environment: the tasks that are asked, and the rubric that scores the answers."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, Protocol

from rollstream.environments.rubric import Scores
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message, Sampling

_LOG = logging.getLogger(__name__)
_WORTH_SAYING_TASKS: Final = 10_000

Split = Literal["train", "validate", "evaluate"]
"""train: for training. validate: tells when a warm-up is good enough. evaluate: used for nothing but evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. `demonstration` is a right answer that a warm-up learns from; None if there is none."""

    task_id: str
    messages: tuple[Message, ...]
    reference_answer: str | None = None
    demonstration: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """What is known of the tasks of a split under a seed without making them.

    `identity` is a name that other tasks do not have. `size` is None if they have no end.
    """

    identity: str
    size: int | None


class Environment(Protocol):
    """Tasks and rubric of one kind of problem.

    It is made by name: one of ours, or one that `[environments.NAME]` of the run's file declares, with its options. The
    process that asks its tasks and the process that scores the answers make it with the same options.

    One whose tasks are slow to make may also have `task_set(split, seed) -> TaskSet`. Without it whoever asks the tasks
    makes thousands of them at its start: to see whether they end, and to name them.

    It may also have `tasks_from(split, seed, start) -> Iterator[Task]`, its tasks from number `start` on. Without it a
    restart makes all tasks before that number again.
    """

    @property
    def name(self) -> str:
        """Its short name, for messages and dataset ids. Prompts carry the name from the settings."""
        ...

    @property
    def rubric(self) -> Scores:
        """How answers are scored: a `Rubric`, or what else has its `score`."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How to sample, unless the producer's settings say otherwise."""
        ...

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Tasks of a split, in an order that `seed` decides. There may be no end. No task is in two splits."""
        ...


def task_set_of(environment: Environment, split: Split, seed: int) -> TaskSet | None:
    """What the environment says of its tasks without making them; None if it does not say."""
    named: Callable[[Split, int], TaskSet] | None = getattr(environment, "task_set", None)
    return None if named is None else named(split, seed)


def tasks_from(environment: Environment, split: Split, seed: int, start: int) -> Iterator[Task]:
    """The environment's tasks from number `start` on. One that can't go there makes those before it: that is logged."""
    direct: Callable[[Split, int, int], Iterator[Task]] | None = getattr(environment, "tasks_from", None)
    if direct is not None:
        return direct(split, seed, start)
    if start >= _WORTH_SAYING_TASKS:
        _LOG.warning(
            "environment %s makes its first %d tasks again, only to pass over them, and more at each later start: give "
            "it `tasks_from`, as rollstream.environments.protocol says", environment.name, start,
        )  # fmt: skip
    return islice(environment.tasks(split, seed), start, None)


def no_tasks(environment: Environment, split: Split, seed: int) -> Iterator[Task]:
    """The method `tasks` of an environment that only scores: raises `ConfigurationError` that says what to do."""
    raise ConfigurationError(
        f"environment {environment.name!r} only scores answers and has no tasks of its own: read them from a file, "
        "e.g. source = 'jsonl' with its `path` in [producer]"
    )


def split_of(content: str) -> Split:
    """The split of a task, decided by a hash of its content, so that the same task is in the same split for any seed.

    `evaluate` and `validate` each get one sixteenth of all contents, `train` the rest.
    """
    bucket = hashlib.sha256(content.encode()).digest()[0] % 16
    if bucket == 0:
        return "evaluate"
    return "validate" if bucket == 1 else "train"
