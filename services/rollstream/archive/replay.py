"""Replays an archive: its rollouts as rows, with the reward of another rubric if wanted, or as demonstrations for SFT.

Every archived record becomes a row or is counted with the reason why it did not. A rollout that was failed, unresolved
or could not be scored has no reward, and its row says why.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.archive.archive import Archive
from rollstream.archive.options import ReplayOptions
from rollstream.archive.rows import Archived, read_rollouts
from rollstream.archive.tables import ROLLOUTS
from rollstream.engines.tokenizer import as_chat
from rollstream.environments.load import load_environment
from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rubric import RewardInput
from rollstream.process.settings.declared import Declaration
from rollstream.process.settings.storage import StorageSettings
from rollstream.rows.conversation import REFERENCE
from rollstream.rows.write import kind_of, write_rows
from rollstream.schemas.prompt import Message
from rollstream.schemas.rollout import FinishReason, answering

Environments = Mapping[str, Declaration] | None

_BATCH_ROWS: Final = 512
_BATCH_CHARACTERS: Final = 2**23
_REMEMBERED: Final = 100_000
"""At least so many rollouts before a record are known, and at most twice as many: duplicates come soon."""


@dataclass(slots=True)
class ReplayReport:
    """How many records were read and written; `left_out`, `unscored`: by reason.

    `gaps`: offsets of `scored` that are not archived. Their records are in none of the numbers.
    """

    num_records: int = 0
    num_written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    unscored: Counter[str] = field(default_factory=Counter)
    gaps: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Judged:
    """A rollout, and the verdict of the rubric that scored it again; None if none did."""

    rollout: Archived
    verdict: Verdict | None

    @property
    def reward(self) -> float | None:
        return self.rollout.reward if self.verdict is None else self.verdict.reward


def replay(
    options: ReplayOptions, environments: Environments = None, storage: StorageSettings | None = None
) -> ReplayReport:
    """Write the rows; the output appears when it is whole.

    `environments`: those that a run's file declares; `storage`: how to reach an archive in a bucket.

    Raises `ConfigurationError` if this is no archive or nothing can be written, and `UnknownEnvironmentError`.
    """
    if options.environment:
        # Here once: else every row would have it as its failure.
        load_environment(options.environment, environments)
    return asyncio.run(_replayed(Archive.reading(options.directory, storage), options, environments))


async def _replayed(archive: Archive, options: ReplayOptions, environments: Environments) -> ReplayReport:
    report = ReplayReport(gaps=archive.gaps(ROLLOUTS))
    with write_rows(options.output, kind_of(options.output)) as writer:
        async with aclosing(_judged(_first_records(archive, report), options, environments)) as all_judged:
            async for judged in all_judged:
                if judged.verdict is not None and judged.verdict.failure is not None:
                    report.unscored[judged.verdict.failure.code.value] += 1
                why = _why_left_out(judged, options)
                if why is not None:
                    report.left_out[why] += 1
                    continue
                writer.write(_demonstration(judged) if options.sft else _row(judged, options.environment))
                report.num_written += 1
    return report


def _first_records(archive: Archive, report: ReplayReport) -> Iterator[Archived]:
    """The archived rollouts, without further records of the same one."""
    # Of each id its hash of 64 bits: a tenth of the memory of ids in their order.
    older, newer = set[int](), set[int]()
    for rollout in read_rollouts(archive):
        report.num_records += 1
        known = hash(rollout.rollout_id)
        if known in newer or known in older:
            report.left_out["another record of the same rollout"] += 1
            continue
        newer.add(known)
        if len(newer) == _REMEMBERED:
            older, newer = newer, set()
        yield rollout


async def _judged(
    rollouts: Iterator[Archived], options: ReplayOptions, environments: Environments
) -> AsyncGenerator[_Judged, None]:
    if not options.environment:
        for rollout in rollouts:
            yield _Judged(rollout, None)
        return
    async with ScoringPool(PoolBounds(num_processes=options.processes), environments) as pool:
        for batch in _batches(rollouts):
            answered = [one for one in batch if one.was_completed]
            verdicts = await _verdicts(pool, answered, options.environment)
            for rollout in batch:
                yield _Judged(rollout, verdicts.get(rollout.place))


async def _verdicts(
    pool: ScoringPool, rollouts: Sequence[Archived], environment: str
) -> dict[tuple[int, int], Verdict]:
    """The verdict on each of them. Those whose turn did not come within the time of a batch are scored in the next."""
    verdicts: dict[tuple[int, int], Verdict] = {}
    waiting = list(rollouts)
    while waiting:
        given = await pool.score([ScoringSample(environment=environment, answer=_answer(one)) for one in waiting])
        verdicts |= {one.place: verdict for one, verdict in zip(waiting, given, strict=True) if verdict is not None}
        waiting = [one for one in waiting if one.place not in verdicts]
    return verdicts


def _answer(rollout: Archived) -> RewardInput:
    texts = tuple(turn.text for turn in answering(rollout.turns)) or rollout.texts
    return RewardInput(
        completion=texts[-1] if texts else "",
        assistant_messages=texts,
        messages=rollout.messages,
        reference_answer=rollout.reference_answer,
        metadata=rollout.metadata,
        turns=rollout.turns,
        observations=rollout.observations,
    )


def _batches(rollouts: Iterator[Archived]) -> Iterator[list[Archived]]:
    batch: list[Archived] = []
    num_characters = 0
    for rollout in rollouts:
        batch.append(rollout)
        num_characters += sum(map(len, rollout.texts))
        if len(batch) == _BATCH_ROWS or num_characters > _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _why_left_out(judged: _Judged, options: ReplayOptions) -> str | None:
    """The reason why a rollout is not in the output; None if it is."""
    why = _why_no_demonstration(judged.rollout) if options.sft else None
    if why is not None or options.min_reward is None:
        return why
    if judged.reward is None:
        return "no reward"
    return f"reward below {options.min_reward:g}" if judged.reward < options.min_reward else None


def _why_no_demonstration(rollout: Archived) -> str | None:
    if not rollout.was_completed:
        return f"{rollout.status}: there is no answer"
    if len(rollout.texts) != 1:
        return "several turns: what the model saw between them is not in the texts"
    if rollout.finish_reason == FinishReason.LENGTH.value:
        return "its answer was cut off"
    if not all(isinstance(tool, dict) for tool in map(_parsed, rollout.tools)):
        return "a tool of its prompt is no JSON object"
    return None


def _demonstration(judged: _Judged) -> dict[str, Any]:
    """A row of prompt and completion as TRL's conversational format has it, with `tools` if there are."""
    rollout = judged.rollout
    row = {"prompt": _prompt(rollout), "completion": [_answered(rollout)], "reward": judged.reward}
    return row | ({"tools": _tools(rollout)} if rollout.tools else {})


def _prompt(rollout: Archived) -> list[dict[str, Any]]:
    return [as_chat(message) for message in rollout.messages]


def _answered(rollout: Archived) -> dict[str, Any]:
    return as_chat(Message(role="assistant", content=rollout.texts[-1], tool_calls=rollout.tool_calls))


def _tools(rollout: Archived) -> str:
    """As JSON text, which TRL takes too: functions differ from row to row, and no column of a file can hold them."""
    return json.dumps([_parsed(tool) for tool in rollout.tools], ensure_ascii=False)


def _parsed(tool: str) -> Any:
    try:
        return json.loads(tool)
    except (ValueError, RecursionError):
        return tool


def _row(judged: _Judged, environment: str) -> dict[str, Any]:
    rollout, verdict = judged.rollout, judged.verdict
    row = {
        "rollout_id": rollout.rollout_id,
        "group_id": rollout.group_id,
        "prompt_id": rollout.prompt_id,
        "prompt": _prompt(rollout),
        "response": rollout.texts[-1] if rollout.was_completed else None,
        "finish_reason": rollout.finish_reason if rollout.was_completed else None,
        "num_turns": len(rollout.texts),
        REFERENCE: rollout.reference_answer,
        "metadata": rollout.metadata,
        "environment": rollout.environment,
        "status": rollout.status,
        "failure": rollout.failure,
        "reward": rollout.reward,
        "outcome": rollout.outcome,
        "trained_step": rollout.trained_step,
    }
    if rollout.tools:
        row["tools"] = _tools(rollout)
    if rollout.was_completed and rollout.tool_calls:
        # Those who imitate it take this instead of the text alone.
        row["completion"] = [_answered(rollout)]
    if not environment:
        return row
    failure = rollout.failure if verdict is None else None if verdict.failure is None else str(verdict.failure)
    status = rollout.status if verdict is None else verdict.status.value
    return row | {
        f"reward_{environment}": None if verdict is None else verdict.reward,
        f"status_{environment}": status,
        f"failure_{environment}": failure,
    }
