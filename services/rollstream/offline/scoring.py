"""Scores samples while others are generated: in batches, in processes that are killed at a deadline.

Only so many wait as are scored together. Then whoever brings one more waits too: memory is bounded, and a process that
is killed loses few answers, since only scored ones are noted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollstream.environments.pool.pool import CHUNK_SAMPLES, ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.offline.ended import EndedSample


@dataclass(frozen=True, slots=True)
class Unscored:
    """A sample that waits for its reward, and what is scored."""

    ended: EndedSample
    sample: ScoringSample


class RewardScoring:
    """`ended` is told of each sample once it has its verdict."""

    def __init__(self, pool: ScoringPool, num_processes: int, ended: Callable[[EndedSample], None]) -> None:
        self._pool = pool
        self._ended = ended
        self._batch_samples = CHUNK_SAMPLES * num_processes
        self._waiting: asyncio.Queue[Unscored | None] = asyncio.Queue(self._batch_samples)

    @property
    def is_full(self) -> bool:
        """Whether samples wait for room, so that scoring limits the rate."""
        return self._waiting.full()

    async def add(self, unscored: Unscored) -> None:
        """Have a sample scored; waits for room."""
        await self._waiting.put(unscored)

    async def end(self) -> None:
        """No more samples come: `run` returns once all have their verdicts."""
        await self._waiting.put(None)

    async def run(self) -> None:
        """Score until `end`. Raises `BrokenWorldError` if no process can be started."""
        batch: list[Unscored] = []
        is_last = False
        while batch or not is_last:
            while not is_last and len(batch) < self._batch_samples and (not batch or not self._waiting.empty()):
                unscored = await self._waiting.get()
                is_last = unscored is None
                if unscored is not None:
                    batch.append(unscored)
            batch = await self._score(batch) if batch else []

    async def _score(self, batch: list[Unscored]) -> list[Unscored]:
        """Returns those whose turn did not come within the time of a batch: others hung."""
        verdicts = await self._pool.score([unscored.sample for unscored in batch])
        left = []
        for unscored, verdict in zip(batch, verdicts, strict=True):
            if verdict is None:
                left.append(unscored)
            else:
                self._ended(_judged(unscored.ended, verdict))
        return left


def _judged(ended: EndedSample, verdict: Verdict) -> EndedSample:
    failure = verdict.failure
    return replace(
        ended,
        reward=verdict.reward,
        components=dict(verdict.components),
        scoring_failure=None if failure is None else failure.code.value,
        scoring_message=None if failure is None else failure.message,
    )
