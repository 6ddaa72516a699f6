"""What an environment is: tasks to pose, and the rubric that scores the answers."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rollstream.environments.rubric import Rubric
from rollstream.schemas.prompt import Message, Sampling

Split = Literal["train", "validate", "evaluate"]
"""train is trained on, validate stops a warm-up, evaluate is held out from both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. `demonstration` is an answer to learn from in a warm-up, None where there is none."""

    task_id: str
    messages: tuple[Message, ...]
    reference_answer: str | None = None
    demonstration: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class Environment(Protocol):
    """Tasks and rubric of one kind of problem; made by name or dotted path, with the string options that the run's file
    gives in `[environments.NAME]`, alike where tasks are posed and where answers are scored."""

    @property
    def name(self) -> str:
        """Its short name, for messages and dataset ids; prompts carry the name or dotted path of the settings."""
        ...

    @property
    def rubric(self) -> Rubric:
        """How answers are scored."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How to sample unless the producer says otherwise."""
        ...

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Tasks of a split in an order that `seed` decides, maybe without end; no task is in two splits."""
        ...


def split_of(content: str) -> Split:
    """The split of a task, decided by its content, so that no seed and no order can put one task into two splits.

    `evaluate` and `validate` get a sixteenth of all contents each, `train` the rest.
    """
    bucket = hashlib.sha256(content.encode()).digest()[0] % 16
    if bucket == 0:
        return "evaluate"
    return "validate" if bucket == 1 else "train"
