"""`analyze-rewards`: gives the rollouts of a file their rewards, in a new file beside it.

Rows are read, scored and written in bounded batches, so memory does not grow with the file. Reward functions run in
processes that are killed when they hang (`environments.pool`). A row without a response, or whose reward function
failed, has a null reward and its reason in `reward_failure`; it never has a reward of 0 for that. The rollouts file is
only read. The output appears when it is whole: a run that was killed leaves the former one, and is started again.
"""

import asyncio
import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollstream.collect.files.row_files import Kind, RowWriter, write_rows
from rollstream.collect.files.rows import BadRow, ReadRow, open_rows
from rollstream.collect.scores.columns import data_source_of, ground_truth_of, messages_of, metadata_of, response_of
from rollstream.collect.scores.earlier import EarlierRewards
from rollstream.collect.scores.functions import Judging
from rollstream.collect.scores.request import ScoresRequest
from rollstream.collect.scores.statistics import Reasons, StatisticsBySource
from rollstream.environments.pool.pool import ScoringPool
from rollstream.environments.pool.verdicts import Sample, Verdict
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import ConfigurationError, RewardError
from rollstream.schemas.failure import FailureCode

_BATCH_ROWS: Final = 512
_BATCH_CHARACTERS: Final = 2**23
_NOT_LOADED: Final = (FailureCode.UNKNOWN_ENVIRONMENT, FailureCode.BROKEN_ENVIRONMENT)

OnRows = Callable[[int], None]


@dataclass(slots=True)
class ScoresReport:
    """What a run found."""

    output: Path
    num_rows: int = 0
    num_scored: int = 0
    by_source: StatisticsBySource = field(default_factory=StatisticsBySource)
    unscored: Reasons = field(default_factory=Reasons)
    bad_rows: Reasons = field(default_factory=Reasons)
    """Rows that can't be read; they are not in the output."""
    earlier: tuple[str, ...] = ()
    """Reward columns of earlier runs that are in the output."""
    num_changed: int = 0
    """Rows to which no earlier reward was carried over, because they are others now."""


def score_rollouts(request: ScoresRequest, on_rows: OnRows = lambda number: None) -> ScoresReport:
    """Score a file; `on_rows` is told how many rows each batch had.

    Raises `ConfigurationError` if the file can't be read or the output not be written.
    """
    with _alone(request.rollouts):
        return asyncio.run(_score(request, on_rows))


async def _score(request: ScoresRequest, on_rows: OnRows) -> ScoresReport:
    column = f"reward_{request.function.name}"
    report, earlier = ScoresReport(request.output), EarlierRewards(request.output, column)
    kind: Kind = "jsonl" if request.output.suffix == ".jsonl" else "parquet"
    async with ScoringPool(request.bounds, request.function.declarations) as pool:
        with write_rows(request.output, kind) as writer:
            for batch in _batches(request.rollouts, report, on_rows):
                scored = await _scored(batch, request, pool)
                for row, result in zip(batch, scored, strict=True):
                    _write(row, result, column, earlier, writer)
                    _count(row, result, report)
            if not report.num_rows - report.bad_rows.total:
                raise ConfigurationError(
                    f"no row of {request.rollouts} can be read: {'; '.join(report.bad_rows.lines())}"
                )
    report.earlier, report.num_changed = tuple(earlier.names), earlier.num_changed
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What became of a row: a reward, or why there is none."""

    source: str
    reward: float | None = None
    normalized: float | None = None
    passed: bool | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row that is scored, and how its reward is judged."""

    sample: Sample
    judging: Judging | None


def _batches(path: Path, report: ScoresReport, on_rows: OnRows) -> Iterator[list[ReadRow]]:
    batch: list[ReadRow] = []
    num_rows = num_characters = 0
    for row in open_rows(path):
        num_rows += 1
        if isinstance(row, BadRow):
            report.bad_rows.add(f"unreadable: {row.why}", row.where)
            continue
        batch.append(row)
        num_characters += sum(len(value) for value in row.fields.values() if isinstance(value, str))
        if len(batch) == _BATCH_ROWS or num_characters > _BATCH_CHARACTERS:
            yield batch
            report.num_rows += num_rows
            on_rows(num_rows)
            batch, num_rows, num_characters = [], 0, 0
    if batch:
        yield batch
    report.num_rows += num_rows
    on_rows(num_rows)


async def _scored(batch: Sequence[ReadRow], request: ScoresRequest, pool: ScoringPool) -> list[_Result]:
    asked = [_asked(row, request) for row in batch]
    verdicts = iter(await _verdicts(pool, [one.sample for one in asked if isinstance(one, _Asked)]))
    return [_result(one, next(verdicts), request) if isinstance(one, _Asked) else one for one in asked]


def _asked(row: ReadRow, request: ScoresRequest) -> _Asked | _Result:
    source = request.data_source or data_source_of(row.fields)
    try:
        completion = response_of(row.fields)
        judging = request.function.judging(source)
        metadata = metadata_of(row.fields)
        if source:
            metadata["data_source"] = source
        answer = RewardInput(
            completion=completion,
            assistant_messages=(completion,),
            messages=messages_of(row.fields),
            reference_answer=ground_truth_of(row.fields),
            metadata=metadata,
        )
    except RewardError as error:
        return _Result(source=source, failure=str(error))
    return _Asked(Sample(environment=request.function.environment, answer=answer), judging)


async def _verdicts(pool: ScoringPool, samples: Sequence[Sample]) -> list[Verdict]:
    """A verdict for each sample. The pool gives at least one in each round."""
    verdicts: list[Verdict | None] = [None] * len(samples)
    while missing := [position for position, verdict in enumerate(verdicts) if verdict is None]:
        found = await pool.score([samples[position] for position in missing])
        for position, verdict in zip(missing, found, strict=True):
            _refuse_unloaded(verdict)
            verdicts[position] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def _refuse_unloaded(verdict: Verdict | None) -> None:
    """What can't be loaded for one row can't be for the others either."""
    if verdict is not None and verdict.failure is not None and verdict.failure.code in _NOT_LOADED:
        raise ConfigurationError(f"the reward function can't be loaded: {verdict.failure.message}")


def _result(asked: _Asked, verdict: Verdict, request: ScoresRequest) -> _Result:
    source = asked.sample.answer.metadata.get("data_source", "")
    if verdict.reward is None:
        return _Result(source=source, failure=str(verdict.failure))
    judging, threshold = asked.judging, request.pass_threshold
    passed = judging.passes(verdict.reward) if judging is not None else None
    return _Result(
        source=source,
        reward=verdict.reward,
        normalized=None if judging is None else judging.normalized(verdict.reward),
        passed=passed if threshold is None else verdict.reward >= threshold,
    )


def _write(row: ReadRow, result: _Result, column: str, earlier: EarlierRewards, writer: RowWriter) -> None:
    scores: dict[str, Any] = {
        **earlier.beside(row.fields),
        column: result.reward,
        "reward": result.reward,
        "reward_normalized": result.normalized,
        "passed": result.passed,
        "reward_failure": result.failure,
    }
    writer.write({**row.fields, **scores})


def _count(row: ReadRow, result: _Result, report: ScoresReport) -> None:
    report.by_source.add(result.source, result.reward, result.passed)
    if result.failure is not None:
        report.unscored.add(result.failure, row.where)
    report.num_scored += result.reward is not None


@contextmanager
def _alone(rollouts: Path) -> Iterator[None]:
    """Two runs on the same rollouts would write the same output, and one would lose the other's column."""
    path = rollouts / "state.json" if rollouts.is_dir() else rollouts
    if not path.is_file():
        yield
        return
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another analyze-rewards is scoring {rollouts}; wait for its end, so that the rewards of both are kept"
            ) from error
        yield
