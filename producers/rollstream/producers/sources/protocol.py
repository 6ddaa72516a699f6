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
    """Tasks in an order that depends on the seed alone, so that any position can be found again."""

    @property
    def dataset(self) -> str:
        """Name of the data set: beginning of its prompt ids."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None if the source is endless, which is one long epoch."""
        ...

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """The rows of the epoch in its order, from position `start`; raises `ConfigurationError` for a bad row."""
        ...
