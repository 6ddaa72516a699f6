"""Scoring in processes that can be killed: a reward function that hangs or crashes costs its own sample, no other.

Verdicts stream back one by one, so the sample that was being scored when a process was killed is known; what followed
it in its chunk goes to the end of the queue, behind the samples of better-behaved environments.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rollstream.schemas.failure import FailureCode
from rollstream.scorer.pool.process import ScoringProcess
from rollstream.scorer.pool.verdicts import Chunk, Sample, Verdict, unresolved

CHUNK_SAMPLES: Final = 64
"""Enough to make the round trip cheap, few enough to share a batch among processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBounds:
    """How many processes, and how long each may take, in seconds."""

    num_processes: int = 1
    sample_seconds: float = 5.0
    load_seconds: float = 10.0
    batch_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class _Lot:
    """Positions of samples of one environment in the batch."""

    environment: str
    positions: Sequence[int]


class ScoringPool:
    """Scores batches, one at a time; `options` by environment. `async with` starts its processes and kills them."""

    def __init__(self, bounds: PoolBounds, options: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._bounds = bounds
        self._options = options or {}
        self._processes = [
            ScoringProcess(sample_seconds=bounds.sample_seconds, load_seconds=bounds.load_seconds)
            for _ in range(bounds.num_processes)
        ]
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(process.start() for process in self._processes))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kill_all()

    async def _kill_all(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def score(self, samples: Sequence[Sample]) -> list[Verdict]:
        """One verdict a sample, in order, within `batch_seconds`; raises `BrokenWorldError` if no process starts."""
        late = unresolved(FailureCode.TIMEOUT, f"its batch was not scored within {self._bounds.batch_seconds:g} s")
        verdicts = [late] * len(samples)
        async with self._turn:
            is_done = False
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._bounds.batch_seconds):
                        await self._work_together(deque(_lots(samples)), samples, verdicts)
                        is_done = True
            finally:
                if not is_done:
                    await self._kill_all()  # what they still say is about samples of this batch
        return verdicts

    async def _work_together(self, lots: deque[_Lot], samples: Sequence[Sample], verdicts: list[Verdict]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for process in self._processes[: len(lots)]:
                    group.create_task(self._work_off(process, lots, samples, verdicts))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work_off(
        self, process: ScoringProcess, lots: deque[_Lot], samples: Sequence[Sample], verdicts: list[Verdict]
    ) -> None:
        while lots:
            lot = lots.popleft()
            chunk = Chunk(
                environment=lot.environment,
                options=self._options.get(lot.environment, {}),
                answers=tuple(samples[position].answer for position in lot.positions),
            )
            done = 0
            async for verdict in process.score(chunk):
                verdicts[lot.positions[done]] = verdict
                done += 1
            if done < len(lot.positions):
                lots.append(_Lot(lot.environment, lot.positions[done:]))


def _lots(samples: Sequence[Sample]) -> list[_Lot]:
    by_environment: dict[str, list[int]] = {}
    for position, sample in enumerate(samples):
        by_environment.setdefault(sample.environment, []).append(position)
    return [
        _Lot(environment, positions[start : start + CHUNK_SAMPLES])
        for environment, positions in by_environment.items()
        for start in range(0, len(positions), CHUNK_SAMPLES)
    ]
