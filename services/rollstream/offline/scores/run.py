"""`analyze-rewards`: gives the rollouts of a file their rewards, in a new file beside it.

  rollouts ──▶ rows that were not scored ──▶ scoring processes ──▶ progress ──▶ output, with the rollouts read again

Reward functions run in processes that are killed when they hang (`environments.pool`). A row without a response, or
whose reward function failed, has a null reward and its reason in `reward_failure`; it never has a reward of 0 for that.
The rollouts are only read. Memory does not grow with them.

A run that was killed leaves the former output, and what it scored but for its last batch in `_progress.sqlite`. The
same command goes on from there, and removes that file when the output is whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from rollstream.environments.pool.pool import CHUNK_SAMPLES, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rubric import RewardInput
from rollstream.offline.paths import OutputPaths
from rollstream.offline.progress import INPUT, Progress, progress_at
from rollstream.offline.scores.columns import is_ours, prompt_of, turns_of
from rollstream.offline.scores.earlier import refuse_unfit
from rollstream.offline.scores.output import Score, ScoredRows, ScoresReport
from rollstream.offline.scores.request import ScoresRequest
from rollstream.process.crash_points import crash_point
from rollstream.process.terminal import shown
from rollstream.rows.conversation import ANSWERS, metadata_of, reference_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow, RowSource, num_characters
from rollstream.rows.write import rewrite_rows
from rollstream.schemas.errors import ConfigurationError, RewardError
from rollstream.schemas.failure import FailureCode

_JOB: Final = "analyze-rewards"
_BATCH_CHARACTERS: Final = 2**23
_NOT_LOADED: Final = (FailureCode.UNKNOWN_ENVIRONMENT, FailureCode.BROKEN_ENVIRONMENT)

OnRows = Callable[[int], None]


def score_rollouts(request: ScoresRequest, on_rows: OnRows = lambda number: None) -> ScoresReport:
    """Score a file; `on_rows` is told how many rows each batch had. The output stays as it was if no row was scored.

    Raises `ConfigurationError` if the file can't be read or the output not be written, if another process writes it, or
    if a run with other options was stopped before its end.
    """
    paths, rollouts = OutputPaths(request.output), open_rows(request.rollouts)
    with paths.locked(), progress_at(paths.progress, _JOB) as progress:
        refuse_unfit(request.output, request.function.column, rollouts)
        identity = rollouts.identity()
        begun_with = {INPUT: identity, **request.compared()}
        num_resumed = progress.num_ended()
        if num_resumed:
            advice = f"name another --output, or remove {progress.path} to score all rows anew"
            progress.refuse_other(begun_with, advice)
        last = progress.last_row
        missing = (row for row in rollouts if isinstance(row, ReadRow) and row.number > last)
        asyncio.run(_score(missing, request, progress, begun_with, on_rows))
        scored = ScoredRows(rollouts, identity, progress, request)
        is_scored = progress.num_ended(is_completed=True) > 0
        if is_scored:
            rewrite_rows(request.output, request.kind, scored.read)
            crash_point("scores_written")
        else:
            # Nothing is gained, and what is there may have rewards: it stays. Reading all makes the report.
            deque(scored.read(), maxlen=0)
        progress.clear()
    if not is_scored:
        _refuse_unanswered(rollouts)
    scored.report.num_resumed = num_resumed
    return scored.report


def _refuse_unanswered(rollouts: RowSource) -> None:
    """Name the missing column, where no row has one with answers."""
    good = (row.fields for row in rollouts if isinstance(row, ReadRow))
    first = next(good, {})
    if not any(name in fields for fields in chain([first], good) for name in ANSWERS):
        raise ConfigurationError(
            f"{rollouts.name} has no column `response`, nor `completion`, only {shown(list(first))}, so there is "
            "nothing to score: name the file that generate-rollouts wrote, or rename the column with the answers"
        )


async def _score(
    rows: Iterable[ReadRow], request: ScoresRequest, progress: Progress, begun_with: Mapping[str, Any], on_rows: OnRows
) -> None:
    async with ScoringPool(request.bounds, request.function.declarations) as pool:
        # One chunk a process: what a killed run loses stays small.
        for batch in _batches(rows, CHUNK_SAMPLES * request.bounds.num_processes):
            scores = await _scores(batch, request, pool)
            if not progress.num_ended():
                # Not before: what can't be loaded, or be read at all, leaves nothing that other options don't fit to.
                progress.begin(begun_with)
            for score in scores:
                score.note(progress)
            progress.commit()
            on_rows(len(batch))


def _batches(rows: Iterable[ReadRow], max_rows: int) -> Iterator[list[ReadRow]]:
    batch: list[ReadRow] = []
    num_read = 0
    for row in rows:
        batch.append(row)
        num_read += num_characters(row.fields)
        if len(batch) == max_rows or num_read > _BATCH_CHARACTERS:
            yield batch
            batch, num_read = [], 0
    if batch:
        yield batch


async def _scores(batch: Sequence[ReadRow], request: ScoresRequest, pool: ScoringPool) -> list[Score]:
    asked = [_asked(row, request) for row in batch]
    verdicts = iter(await _verdicts(pool, [one for one in asked if isinstance(one, ScoringSample)]))
    return [
        _score_of(row, next(verdicts)) if isinstance(one, ScoringSample) else one
        for row, one in zip(batch, asked, strict=True)
    ]


def _asked(row: ReadRow, request: ScoresRequest) -> ScoringSample | Score:
    """What is scored; or why the row can't be."""
    source = request.source_of(row.fields)
    try:
        turns = turns_of(row.fields)
        # It may know that there is no reward for this source.
        request.function.judging(source)
        metadata = metadata_of(row.fields, is_ours)
        if source:
            metadata["data_source"] = source
        answer = RewardInput(
            completion=turns[-1],
            assistant_messages=turns,
            messages=prompt_of(row.fields),
            reference_answer=reference_of(row.fields),
            metadata=metadata,
        )
    except RewardError as error:
        return Score(row.number, None, str(error))
    return ScoringSample(environment=request.function.environment, answer=answer)


async def _verdicts(pool: ScoringPool, samples: Sequence[ScoringSample]) -> list[Verdict]:
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


def _score_of(row: ReadRow, verdict: Verdict) -> Score:
    return Score(row.number, verdict.reward, None if verdict.reward is not None else str(verdict.failure))
