"""Compares the rewards of two files of rollouts of the same examples, e.g. before and after training."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from rollstream.offline.compare.examples import (
    Example,
    ExampleDelta,
    ExampleRow,
    ExampleTable,
    example_key,
    sample_of,
)
from rollstream.offline.options import CompareOptions
from rollstream.offline.statistics import RewardStatistics, shown_text
from rollstream.rows.conversation import asked_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.rows.write import Kind, kind_of, write_rows
from rollstream.schemas.errors import ConfigurationError, UnusableRowError

_NUM_LISTED: Final = 10
_LOOKED_AT: Final = 100


@dataclass(slots=True)
class Side:
    """One file. `rewards`: of the rows that name an example.

    `bad`: the first rows that name none, or can't be read, each with its reason. `missing`: the first examples that
    have a reward only in the other file.
    """

    name: str
    rewards: RewardStatistics = field(default_factory=RewardStatistics)
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)
    num_missing: int = 0
    missing: list[Example] = field(default_factory=list)

    def add_bad(self, where: str, why: str) -> None:
        """Count a row that is part of no example."""
        self.num_bad += 1
        if len(self.bad) < _NUM_LISTED:
            self.bad.append(f"{where}: {why}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`mean_*`: over the `num_matched` examples with a reward in both files. `deltas`: those that fell most first."""

    matched_by: Literal["example_id", "prompt"]
    num_matched: int
    mean_before: float
    mean_after: float
    before: Side
    after: Side
    deltas: tuple[ExampleDelta, ...]

    @property
    def mean_delta(self) -> float:
        """The mean over the matched examples of each one's delta."""
        return self.mean_after - self.mean_before


def compare(options: CompareOptions) -> Comparison:
    """Compare, keep `limit` deltas, and write all of them to `output`, if given.

    Raises `ConfigurationError` if a file can't be read, or if no example is in both.
    """
    before, after, output = options.before, options.after, options.output
    sources = open_rows(before), open_rows(after)
    kind = None if output is None else kind_of(output, may_be_directory=False)
    by_id = _is_by_id(options.by, sources)
    with closing(ExampleTable()) as table:
        sides = [_read(source, table, by_id=by_id, is_after=bool(at)) for at, source in enumerate(sources)]
        table.settle()
        num_matched, mean_before, mean_after = table.means()
        if not num_matched:
            word = "example_id" if by_id else "prompt"
            raise ConfigurationError(
                f"{before} and {after} have no example in common that both have a reward for (matched by {word}): "
                "name two files of the same examples, or match by the other one with --by"
            )
        if output is not None and kind is not None:
            _write(table, output, kind)
        for at, side in enumerate(sides):
            side.num_missing, side.missing = table.missing(is_after=bool(at), limit=_NUM_LISTED)
        matched_by: Literal["example_id", "prompt"] = "example_id" if by_id else "prompt"
        deltas = tuple(table.deltas(options.limit))
        return Comparison(matched_by, num_matched, mean_before, mean_after, sides[0], sides[1], deltas)


def _is_by_id(match_by: str, sources: tuple[RowSource, RowSource]) -> bool:
    """Whether to match by id: as told, else if the first rows of both files have one."""
    if match_by != "auto":
        return match_by == "example_id"
    return all(
        any(isinstance(row, ReadRow) and row.fields.get("example_id") is not None for row in islice(source, _LOOKED_AT))
        for source in sources
    )


def _read(source: RowSource, table: ExampleTable, *, by_id: bool, is_after: bool) -> Side:
    """Add a file to the table."""
    side = Side(source.name)

    def keyed() -> Iterator[ExampleRow]:
        for row in source:
            if isinstance(row, BadRow):
                side.add_bad(row.where, row.why)
                continue
            try:
                key = example_key(row.fields, by_id=by_id)
            except UnusableRowError as error:
                side.add_bad(row.where, str(error))
                continue
            reward = row.fields.get("reward")
            yield ExampleRow(
                key=key,
                label=_label(row.fields, by_id=by_id),
                sample=None if by_id else sample_of(row.fields),
                reward=reward if side.rewards.add(reward) else None,
            )

    table.add_all(keyed(), is_after=is_after)
    return side


def _label(fields: dict[str, Any], *, by_id: bool) -> str:
    return shown_text(str(fields["example_id"]) if by_id else asked_of(fields)[1])


def _write(table: ExampleTable, output: Path, kind: Kind) -> None:
    with write_rows(output, kind) as writer:
        for one in table.deltas():
            writer.write(
                {"example": one.label, "key": one.key, "before": one.before, "after": one.after, "delta": one.delta}
            )
