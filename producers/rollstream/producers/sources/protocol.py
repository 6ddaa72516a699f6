"""What a producer reads prompts from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rollstream.schemas.prompt import Message, PromptSubmitted


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One task of a source. `prompt_id` is unique within the run: it begins with the source.

    `own_id`: the task's own, which another source may have too; None if it has none. `whole`: the prompt as a client
    made it, with an environment, sampling, group_size and agent of its own; None: these are as the settings say.
    """

    prompt_id: str
    row: int
    messages: tuple[Message, ...]
    reference_answer: str | None = None
    tools: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    own_id: str | None = None
    whole: PromptSubmitted | None = None

    @property
    def task(self) -> str:
        """Names the task in whatever row and file it lies: its own id, else all that it asks."""
        if self.own_id is not None:
            return f"id {self.own_id}"
        asked = (*(message.hashed_json() for message in self.messages), *self.tools, self.reference_answer or "")
        return f"asks {json.dumps(asked)}"


class Source(Protocol):
    """Gives tasks in an order that depends on the seed alone, so that a restart finds any position again."""

    @property
    def dataset(self) -> str:
        """Name of the data set; its prompt ids begin with it. Other tasks have another name (`identity.py`)."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None if the source is endless: then it has one epoch."""
        ...

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """The rows of the epoch in its order, from position `start`; raises `ConfigurationError` for a bad row.

        The position of a row of an endless source is its number, and some numbers may have no row.
        """
        ...
