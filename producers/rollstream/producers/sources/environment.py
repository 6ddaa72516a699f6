"""Prompts from an environment's tasks."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from rollstream.environments.protocol import Environment, Split, Task, TaskSet, task_set_of, tasks_from
from rollstream.producers.sources.identity import tasks_identity
from rollstream.producers.sources.protocol import PromptRow
from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import ConfigurationError

MOST_SHUFFLED_TASKS: Final = 10_000
"""An environment with more tasks than this counts as endless: one epoch, in the environment's own seeded order."""


class EnvironmentSource:
    """The tasks of one split under one seed."""

    def __init__(self, environment: Environment, *, split: Split, seed: int) -> None:
        self._environment = environment
        self._split = split
        self._seed = seed
        known, first = _known_and_first(environment, split, seed)
        if not first:
            raise ConfigurationError(f"environment {environment.name} has no task in its split {split!r}")
        # Not named by the seed: some environments give the same tasks with any, and their prompts would come twice.
        self.dataset = tasks_identity(f"{environment.name}/{split}", first) if known is None else known.identity
        is_small = len(first) <= MOST_SHUFFLED_TASKS if known is None else _is_small(known)
        self._all = first if is_small else None
        self.num_rows = len(first) if is_small else None

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """Few tasks are shuffled; many come in the environment's own order."""
        if self._all is None:
            for row, task in enumerate(tasks_from(self._environment, self._split, self._seed, start), start):
                yield self._row(row, task)
            return
        [(_, order)] = epoch_order([len(self._all)], seed=self._seed, epoch=epoch)
        for row in order[start:]:
            yield self._row(row, self._all[row])

    def _row(self, row: int, task: Task) -> PromptRow:
        return PromptRow(
            prompt_id=f"{self.dataset}/{row}",
            row=row,
            own_id=task.task_id,
            messages=task.messages,
            reference_answer=task.reference_answer,
            metadata={**task.metadata, "task_id": task.task_id},
        )


def _known_and_first(environment: Environment, split: Split, seed: int) -> tuple[TaskSet | None, list[Task]]:
    """What the environment says of its tasks; and the first, all if they are few enough to be shuffled.

    Of tasks that are known to be more only one is made: to make them may take long.
    """
    try:
        known = task_set_of(environment, split, seed)
        wanted = MOST_SHUFFLED_TASKS + 1 if known is None or _is_small(known) else 1
        return known, list(islice(environment.tasks(split, seed), wanted))
    except Exception as error:
        raise ConfigurationError(
            f"environment {environment.name} raised {type(error).__name__} while giving the tasks of its split "
            f"{split!r}: {error}; mend its code, or name another one"
        ) from error


def _is_small(known: TaskSet) -> bool:
    return known.size is not None and known.size <= MOST_SHUFFLED_TASKS
