"""Runs reward functions in processes that can be killed: if one hangs or crashes, only its own sample is lost.

A process sends each verdict at once. So when it is killed, it is known which sample it was scoring. The samples after
that one in the chunk go to the end of the queue, so that they don't delay the samples of other environments.
Environments that have answered before come first, so that they don't wait while another one hangs.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from rollstream.environments.pool.process import ScoringProcess
from rollstream.environments.pool.verdicts import (
    REWARD_AT_TIMEOUT,
    STARTED,
    Chunk,
    ScoringSample,
    Verdict,
    unresolved,
)
from rollstream.process.parent import keep_others_out
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status

CHUNK_SAMPLES: Final = 64
"""Large enough that the round trip costs little, and small enough to divide a batch between the processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """How many processes, and how long each may take, in seconds.

    `rewards_at_timeout`: environment → reward of a sample whose scoring takes longer than `sample_seconds`; of the
    others such a sample is unresolved.
    `load_seconds` bounds how long making an environment may take; `math` and `by_source` take 6 to 18 s where the files
    of antlr and sympy are not in memory yet. `batch_seconds` must hold that and a sample.
    """

    num_processes: int = 1
    sample_seconds: float = 5.0
    load_seconds: float = 60.0
    batch_seconds: float = 75.0
    rewards_at_timeout: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _QueuedChunk:
    """A chunk that waits for a process: samples of one environment, by their positions in the batch."""

    environment: str
    positions: Sequence[int]


class ScoringPool:
    """Scores batches, one at a time. `async with` starts the processes, and kills them at its end.

    `environments` are those that the settings declare, by their names.
    """

    def __init__(self, bounds: PoolBounds, environments: Mapping[str, Declaration] | None = None) -> None:
        self._bounds = bounds
        self._processes = [
            ScoringProcess(
                sample_seconds=bounds.sample_seconds,
                load_seconds=bounds.load_seconds,
                rewards_at_timeout=bounds.rewards_at_timeout,
                environments=environments,
            )
            for _ in range(bounds.num_processes)
        ]
        self._next_id = STARTED + 1
        self._have_answered: set[str] = set()
        # A process answers in the order of its requests, so two batches must not use it at the same time.
        self._one_batch = asyncio.Lock()

    async def __aenter__(self) -> Self:
        keep_others_out()
        try:
            await _all_of(process.start() for process in self._processes)
        except BaseException:
            # `__aexit__` is not called then, and the others may have started.
            await self._kill_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kill_all()

    async def _kill_all(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def score(self, samples: Sequence[ScoringSample]) -> list[Verdict | None]:
        """One verdict for each sample, in their order, within `batch_seconds`. At least one sample gets its verdict.

        None: it was not its turn within this time, or not for long enough. Raises `BrokenWorldError` if no process can
        be started.
        """
        verdicts: list[Verdict | None] = [None] * len(samples)
        queue = self._queue(samples)
        first = queue[0].positions[0] if queue else 0
        async with self._one_batch:
            is_done = False
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._bounds.batch_seconds):
                        await self._score_with_all(queue, samples, verdicts)
                        is_done = True
            finally:
                if not is_done:
                    # Verdicts of this batch that still come are not waited for any more.
                    await self._kill_all()
        if samples and not any(verdicts):
            late = f"starting its process, loading its environment and scoring it took {self._bounds.batch_seconds:g} s"
            verdicts[first] = unresolved(FailureCode.TIMEOUT, late)
        return verdicts

    async def _score_with_all(
        self, queue: deque[_QueuedChunk], samples: Sequence[ScoringSample], verdicts: list[Verdict | None]
    ) -> None:
        await _all_of(self._score_queue(process, queue, samples, verdicts) for process in self._processes[: len(queue)])

    async def _score_queue(
        self,
        process: ScoringProcess,
        queue: deque[_QueuedChunk],
        samples: Sequence[ScoringSample],
        verdicts: list[Verdict | None],
    ) -> None:
        while queue:
            queued = queue.popleft()
            done = 0
            async for verdict in process.score(self._chunk(queued, samples)):
                verdicts[queued.positions[done]] = verdict
                done += 1
                if verdict.status is Status.COMPLETED and REWARD_AT_TIMEOUT not in verdict.components:
                    self._have_answered.add(queued.environment)
            if done < len(queued.positions):
                queue.append(_QueuedChunk(queued.environment, queued.positions[done:]))

    def _chunk(self, queued: _QueuedChunk, samples: Sequence[ScoringSample]) -> Chunk:
        answers = tuple(samples[position].answer for position in queued.positions)
        chunk = Chunk(number=self._next_id, environment=queued.environment, answers=answers)
        self._next_id = chunk.sample_ids.stop
        return chunk

    def _queue(self, samples: Sequence[ScoringSample]) -> deque[_QueuedChunk]:
        chunks = _chunks(samples)
        return deque(sorted(chunks, key=lambda chunk: chunk.environment not in self._have_answered))


async def _all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all; when one raises, cancel the others and raise its error itself: callers choose the exit code by it."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _chunks(samples: Sequence[ScoringSample]) -> list[_QueuedChunk]:
    by_environment: dict[str, list[int]] = {}
    for position, sample in enumerate(samples):
        by_environment.setdefault(sample.environment, []).append(position)
    return [
        _QueuedChunk(environment, positions[start : start + CHUNK_SAMPLES])
        for environment, positions in by_environment.items()
        for start in range(0, len(positions), CHUNK_SAMPLES)
    ]
