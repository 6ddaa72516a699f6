"""What a producer reads prompts from."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rollstream.schemas.prompt import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One task of a source. `prompt_id` is unique within the run: it begins with the source."""

    prompt_id: str
    row: int
    messages: tuple[Message, ...]
    reference_answer: str | None = None
    tools: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


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
        """The rows of the epoch in its order, from position `start`; raises `ConfigurationError` for a bad row."""
        ...
