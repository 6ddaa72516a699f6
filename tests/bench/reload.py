"""`python -m tests.bench reload`: how long a weight update stops the tokens of running requests."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import numpy as np

from rollstream.engines.protocol import Engine, GenerationRequest
from rollstream.engines.vllm.answers import sampling_params
from rollstream.engines.vllm.engine import VllmEngine
from rollstream.schemas.prompt import Sampling
from tests.bench.live_engine import SHAPES, DirectLoad, Shape, started_engine, take_engine_cores, write_model
from tests.bench.pairs import count_option, scratch, tell

_TARGET_STEPS: Final = 15.0
_MAX_MODEL_LEN: Final = 256
_ANSWER_TOKENS: Final = 200
_SETTLE_SECONDS: Final = 1.0
_NUM_PROBES: Final = 2
"""Requests that are watched token by token: two, so that one is inside its answer while the other begins its next."""
_DEADLINE_SECONDS: Final = 30.0


@dataclass(slots=True)
class TokenTimes:
    """The moments when tokens of the watched requests came, in order, monotonic seconds."""

    moments: list[float] = field(default_factory=list)

    def steps(self) -> float:
        """Seconds of a decode step: the median time between tokens. Tokens of the same step count once."""
        gaps = np.diff(self.moments)
        # Two requests give half of the gaps within steps, so a step is among the longer half.
        return float(np.median(gaps[gaps > 0.1 * np.percentile(gaps, 75)]))

    async def one_after(self, moment: float) -> None:
        """Wait for a token later than `moment`."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not self.moments or self.moments[-1] <= moment:
                await asyncio.sleep(0.005)

    async def gap_around(self, began: float, ended: float) -> float:
        """The longest time without a token between the last before `began` and the first after `ended`."""
        await self.one_after(ended)
        first = int(np.searchsorted(self.moments, began)) - 1
        last = int(np.searchsorted(self.moments, ended, side="right"))
        return float(np.diff(self.moments[first : last + 1]).max())


@click.command("reload")
@click.option("--shape", default="demo", show_default=True, type=click.Choice(sorted(SHAPES)), help="Which model.")
@count_option("--updates", 30, 2, "Updates that are measured, after two that are not.")
@count_option("--concurrency", 64, 1, "Requests that run.")
def command(shape: str, updates: int, concurrency: int) -> None:
    """Time without tokens around an update, 95th percentile, in decode steps. Target for the demo's model: 15."""
    with scratch() as directory:
        figures = asyncio.run(_measure(directory, SHAPES[shape], updates, concurrency))
    settings = {"shape": shape, "updates": updates, "concurrency": concurrency, "max_model_len": _MAX_MODEL_LEN}
    tell("reload", figures, {**settings, "kv_after_update": "keep"})


async def _measure(directory: Path, shape: Shape, updates: int, concurrency: int) -> dict[str, Any]:
    take_engine_cores()
    versions = [directory / f"version-{seed}" for seed in range(2)]
    for seed, path in enumerate(versions):
        write_model(path, shape, seed=seed)
    engine = await started_engine(versions[0], max_model_len=_MAX_MODEL_LEN)
    assert isinstance(engine, VllmEngine)
    times = TokenTimes()
    long_answers = replace(shape, max_tokens=_ANSWER_TOKENS)
    try:
        async with DirectLoad(engine=engine, shape=long_answers, concurrency=concurrency - _NUM_PROBES):
            watching = [asyncio.create_task(_watch(engine, times, number)) for number in range(_NUM_PROBES)]
            try:
                found = await _update(engine, versions, times, updates)
            finally:
                for one in watching:
                    one.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
    finally:
        await engine.close()
    return _report(found, times.steps())


async def _watch(engine: VllmEngine, times: TokenTimes, number: int) -> None:
    await asyncio.sleep(number)
    for attempt in itertools.count():
        request = GenerationRequest(
            request_id=f"probe-{number}-{attempt}",
            prompt_token_ids=np.array([3, 4, 5], dtype=np.int32),
            sampling=Sampling(),
            max_tokens=_ANSWER_TOKENS,
            seed=None,
        )
        async for _ in _tokens(engine, request):
            times.moments.append(time.monotonic())


def _tokens(engine: VllmEngine, request: GenerationRequest) -> AsyncIterator[Any]:
    """What vLLM gives out at each token; `generate` asks for the whole answer, which costs less."""
    # vLLM may be imported only after its environment is set, which making the engine does.
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    params = sampling_params(request)
    params.output_kind = RequestOutputKind.DELTA
    prompt = tokens_input(request.prompt_token_ids.tolist(), cache_salt=str(engine._weight_version))
    outputs: AsyncIterator[Any] = engine._running().generate(prompt, params, request.request_id)
    return outputs


async def _update(engine: Engine, versions: list[Path], times: TokenTimes, updates: int) -> list[tuple[float, float]]:
    """For each update but the first two: the seconds without tokens, and the pause that the engine reports."""
    found = []
    for number in range(updates + 2):
        await asyncio.sleep(_SETTLE_SECONDS)
        # The first tokens of a cold engine take longer than `_SETTLE_SECONDS`.
        await times.one_after(0.0)
        began = time.monotonic()
        report = await engine.load_weights(number + 1, versions[(number + 1) % 2])
        found.append((await times.gap_around(began, time.monotonic()), report.stall_seconds))
    return found[2:]


def _report(found: list[tuple[float, float]], step_seconds: float) -> dict[str, Any]:
    gaps = [gap for gap, _ in found]
    p95 = float(np.percentile(gaps, 95))
    return {
        "ratio": round(p95 / step_seconds, 2),
        "target": _TARGET_STEPS,
        "ratio_median": round(median(gaps) / step_seconds, 2),
        "gap_seconds_p95": round(p95, 4),
        "gap_seconds_median": round(median(gaps), 4),
        "decode_step_seconds": round(step_seconds, 5),
        "paused_seconds_median": round(median(stall for _, stall in found), 4),
    }
