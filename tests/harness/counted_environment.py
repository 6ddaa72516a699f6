"""Environments whose tasks are dear: they note which ones were made."""

from collections.abc import Iterator
from itertools import count
from typing import ClassVar

from rollstream.environments.protocol import Split, Task, TaskSet
from rollstream.environments.rubric import Rubric, WeightedReward
from rollstream.schemas.prompt import Message, Sampling

NAME = "counted"
PATH = "tests.harness.counted_environment.Counted"


class InOrder:
    """Endless tasks, which can only be made one after the other."""

    name = NAME
    rubric = Rubric(WeightedReward("answered", lambda sample: float(bool(sample.completion))))
    sampling = Sampling(max_tokens=8)
    made: ClassVar[list[int]] = []
    """The numbers of all tasks that were made in this process."""

    def task_set(self, split: Split, seed: int) -> TaskSet:
        """See `TaskSet`."""
        return TaskSet(f"{NAME}/{split}/{seed}", None)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """See `Environment.tasks`."""
        return self._made_from(0)

    def _made_from(self, start: int) -> Iterator[Task]:
        for number in count(start):
            self.made.append(number)
            yield Task(task_id=str(number), messages=(Message(role="user", content=f"{number}="),))


class Counted(InOrder):
    """The same, and any of them can be made at once."""

    def tasks_from(self, split: Split, seed: int, start: int) -> Iterator[Task]:
        """The tasks from number `start` on."""
        return self._made_from(start)
