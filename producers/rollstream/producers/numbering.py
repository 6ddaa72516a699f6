"""Numbers the rows of a source, and makes the prompt of each. Pure.

A position counts a source's rows over all epochs. The same position always names the same row, so a producer that
restarts goes on from a position. A sequence number counts a producer's prompts: it goes on when the source is changed.

With a curriculum not every row is posed. Then a position counts those that are, and a `Pass` says with which position
its epoch began. Which rows a pass poses is fixed when it begins (`curriculum.py`).
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.protocol import PromptRow, Source
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.prompt import PromptSource, PromptSubmitted, Purpose, Sampling, refuse_out_of_bounds
from rollstream.schemas.record import utc_now

_LOG = logging.getLogger(__name__)
# No position is beyond what a record can hold.
_MOST_DIGITS: Final = 15


class Pass(NamedTuple):
    """One pass of a curriculum over its source: the epoch, and the position of the first row that it poses."""

    epoch: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlace:
    """A row's position in its source, and the sequence number of its prompt. `of_pass`: only with a curriculum."""

    position: int = 0
    sequence: int = 0
    of_pass: Pass | None = None

    @property
    def next(self) -> "RowPlace":
        return replace(self, position=self.position + 1, sequence=self.sequence + 1)

    def mark(self, seed: int) -> str:
        """The position in the order of this seed, as `ProducerProgress` holds it."""
        return "/".join(map(str, (self.position, seed, *(self.of_pass or ()))))


class Mark(NamedTuple):
    """What a `ProducerProgress` says of the place; `seed` is empty where it says none."""

    position: int
    seed: str
    of_pass: Pass | None


def read_mark(text: str) -> Mark | None:
    """What `RowPlace.mark` wrote; None if anything else did."""
    position, *others = text.split("/")
    numbers = [position, *others[1:]]
    if len(others) not in (0, 1, 3) or not all(one.isdecimal() and len(one) <= _MOST_DIGITS for one in numbers):
        return None
    of_pass = Pass(*map(int, others[1:])) if len(others) == 3 else None
    return Mark(int(position), others[0] if others else "", of_pass)


def place_after(
    progress: ProducerProgress | None, dataset: str, seed: int, *, earlier: ProducerProgress | None = None
) -> RowPlace:
    """Where a producer goes on that has left `progress`; None: it has left nothing. Another data set starts anew.

    `earlier`: the newest record that it has left of this data set. It counts where `progress` is of another one, which
    anybody may have written: no row must come again for that.

    Raises `ConfigurationError` if the rows of the same data set would come in the order of another seed: the position
    would leave some out, and repeat others whose groups are closed.
    """
    if progress is None:
        return RowPlace()
    if progress.source != dataset and earlier is not None:
        return replace(place_after(earlier, dataset, seed), sequence=progress.next_sequence)
    mark = read_mark(progress.mark)
    if progress.source != dataset or mark is None:
        _LOG.warning(
            "producer %s was at %r of %s: it starts at the first row of %s",
            progress.producer, progress.mark, progress.source, dataset,
        )  # fmt: skip
        return RowPlace(sequence=progress.next_sequence)
    if mark.seed not in ("", str(seed)):
        raise ConfigurationError(
            f"producer {progress.producer} is at row {mark.position} of {dataset} in the order of seed {mark.seed}: "
            f"with seed {seed} it would leave rows out and repeat others; set seed = {mark.seed}, or start another run"
        )
    return RowPlace(position=mark.position, sequence=progress.next_sequence, of_pass=mark.of_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRow:
    """A row with its place and its epoch."""

    place: RowPlace
    epoch: int
    row: PromptRow


def last_position(source: Source, *, epochs: int | None, num_prompts: int | None) -> int | None:
    """The position to stop before; None if the producer is endless."""
    if epochs is None:
        return num_prompts
    if source.num_rows is None:
        raise ConfigurationError(
            f"{source.dataset} is endless, so epochs={epochs} has no end: set `num_prompts` instead"
        )
    of_epochs = epochs * source.num_rows
    return of_epochs if num_prompts is None else min(of_epochs, num_prompts)


def numbered_rows(source: Source, first: RowPlace, *, stop_before: int | None) -> Iterator[NumberedRow]:
    """The rows from the place `first` on, over all epochs; `stop_before` is a position."""
    epoch, start = (0, first.position) if source.num_rows is None else divmod(first.position, source.num_rows)
    place = first
    while True:
        for row in source.rows(epoch, start):
            if source.num_rows is None:
                place = replace(place, position=row.row)
            if stop_before is not None and place.position >= stop_before:
                return
            yield NumberedRow(place=place, epoch=epoch, row=row)
            place = place.next
        if source.num_rows is None:
            return
        epoch, start = epoch + 1, 0


def chosen_rows(
    source: Source, first: RowPlace, is_posed: Callable[[PromptRow, int], bool], *, stop_before: int | None
) -> Iterator[NumberedRow]:
    """The rows that the pass of `first` poses, from there to its end; `is_posed` gets a row and the epoch."""
    assert first.of_pass is not None
    epoch, position = first.of_pass
    place = replace(first, position=position, sequence=first.sequence - (first.position - position))
    for row in source.rows(epoch, 0):
        if stop_before is not None and place.position >= stop_before:
            return
        if is_posed(row, epoch):
            if place.position >= first.position:
                yield NumberedRow(place=place, epoch=epoch, row=row)
            place = place.next


def group_of_row(numbered: NumberedRow, run: str) -> str:
    return group_id(run, numbered.row.prompt_id, numbered.epoch)


def prompt_of_row(
    numbered: NumberedRow, *, settings: ProducerSettings, dataset: str, sampling: Sampling
) -> PromptSubmitted:
    """The prompt of a row. Same row, epoch and settings: same prompt, but for who submits it and when.

    Raises `ConfigurationError` if all its samples would fail, since a number of it is out of its bounds.
    """
    row = numbered.row
    group = group_of_row(numbered, settings.run)
    source = PromptSource(dataset=dataset, row=row.row, epoch=numbered.epoch)
    if row.whole is not None:
        posed = {"source": source, "producer": settings.name, "sequence": numbered.place.sequence}
        return row.whole.model_copy(update={**posed, "submitted_at": utc_now()})
    prompt = PromptSubmitted(
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
        source=source,
        producer=settings.name,
        sequence=numbered.place.sequence,
        submitted_at=utc_now(),
    )
    refuse_out_of_bounds(prompt)
    return prompt


def _seeded(sampling: Sampling, group: str) -> Sampling:
    """`sampling` with a seed of the prompt's own; one seed for all prompts would draw the same noise for each."""
    if sampling.seed is None:
        return sampling
    digest = hashlib.sha256(f"{sampling.seed}\0{group}".encode()).digest()
    return sampling.model_copy(update={"seed": int.from_bytes(digest[:4], "little")})
