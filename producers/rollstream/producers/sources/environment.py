"""Prompts from an environment's tasks."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from rollstream.environments.protocol import Environment, Split, Task
from rollstream.producers.order import epoch_order
from rollstream.producers.sources.identity import tasks_identity
from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import ConfigurationError

MOST_SHUFFLED_TASKS: Final = 10_000
"""An environment with more tasks than this counts as endless: one epoch, in the environment's own seeded order."""


class EnvironmentSource:
    """The tasks of one split under one seed."""

    def __init__(self, environment: Environment, *, split: Split, seed: int) -> None:
        self._environment = environment
        self._split = split
        self._seed = seed
        first = _first_tasks(environment, split, seed)
        if not first:
            raise ConfigurationError(f"environment {environment.name} has no task in its split {split!r}")
        # Not named by the seed: some environments give the same tasks with any, and their prompts would come twice.
        self._identity = tasks_identity(f"{environment.name}/{split}", first)
        self._all = first if len(first) <= MOST_SHUFFLED_TASKS else None

    @property
    def dataset(self) -> str:
        """See `Source.dataset`."""
        return self._identity

    @property
    def num_rows(self) -> int | None:
        """See `Source.num_rows`."""
        return None if self._all is None else len(self._all)

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """See `Source.rows`."""
        if self._all is None:
            tasks = self._environment.tasks(self._split, self._seed)
            for row, task in enumerate(islice(tasks, start, None), start):
                yield self._row(row, task)
            return
        [(_, order)] = epoch_order([len(self._all)], seed=self._seed, epoch=epoch)
        for row in order[start:]:
            yield self._row(row, self._all[row])

    def _row(self, row: int, task: Task) -> PromptRow:
        return PromptRow(
            prompt_id=f"{self.dataset}/{row}",
            row=row,
            messages=task.messages,
            reference_answer=task.reference_answer,
            metadata={**task.metadata, "task_id": task.task_id},
        )


def _first_tasks(environment: Environment, split: Split, seed: int) -> list[Task]:
    try:
        return list(islice(environment.tasks(split, seed), MOST_SHUFFLED_TASKS + 1))
    except Exception as error:
        raise ConfigurationError(
            f"environment {environment.name} raised {type(error).__name__} while giving the tasks of its split "
            f"{split!r}: {error}; mend its code, or name another one"
        ) from error
