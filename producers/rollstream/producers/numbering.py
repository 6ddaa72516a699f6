"""Numbers the rows of a source, and makes the prompt of each. Pure.

A sequence number counts a producer's rows over all epochs. The same number always names the same row, so a producer
that restarts goes on from a number.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.protocol import PromptRow, Source
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRow:
    """A row, its sequence number and its epoch."""

    sequence: int
    epoch: int
    row: PromptRow


def last_sequence(source: Source, *, epochs: int | None, num_prompts: int | None) -> int | None:
    """The sequence number to stop before; None if the producer is endless."""
    if epochs is None:
        return num_prompts
    if source.num_rows is None:
        raise ConfigurationError(
            f"{source.dataset} is endless, so epochs={epochs} has no end: set `num_prompts` instead"
        )
    of_epochs = epochs * source.num_rows
    return of_epochs if num_prompts is None else min(of_epochs, num_prompts)


def numbered_rows(source: Source, *, first: int, stop_before: int | None) -> Iterator[NumberedRow]:
    """The rows from sequence number `first` on, over all epochs."""
    epoch, position = (0, first) if source.num_rows is None else divmod(first, source.num_rows)
    sequence = first
    while True:
        for row in source.rows(epoch, position):
            if stop_before is not None and sequence >= stop_before:
                return
            yield NumberedRow(sequence=sequence, epoch=epoch, row=row)
            sequence += 1
        if source.num_rows is None:
            return
        epoch, position = epoch + 1, 0


def prompt_of_row(
    numbered: NumberedRow, *, settings: ProducerSettings, dataset: str, sampling: Sampling
) -> PromptSubmitted:
    """The prompt of a row. Same row, epoch and settings: same prompt, but for who submits it and when."""
    row = numbered.row
    group = group_id(settings.run, row.prompt_id, numbered.epoch)
    return PromptSubmitted(
        prompt_id=row.prompt_id,
        group_id=group,
        purpose=Purpose(settings.purpose),
        environment=settings.environment,
        messages=row.messages,
        tools=row.tools,
        reference_answer=row.reference_answer,
        sampling=_seeded(sampling, group),
        group_size=settings.group_size,
        agent=settings.agent,
        metadata=row.metadata,
        source=PromptSource(dataset=dataset, row=row.row, epoch=numbered.epoch),
        producer=settings.name,
        sequence=numbered.sequence,
        submitted_at=utc_now(),
    )


def _seeded(sampling: Sampling, group: str) -> Sampling:
    """`sampling` with a seed of the prompt's own; one seed for all prompts would draw the same noise for each."""
    if sampling.seed is None:
        return sampling
    digest = hashlib.sha256(f"{sampling.seed}\0{group}".encode()).digest()
    return sampling.model_copy(update={"seed": int.from_bytes(digest[:4], "little")})
