"""`python -m tests.bench serve`: what it costs clients that their answers are recorded."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import click

from rollstream.agents.samples import identity_of
from rollstream.bus.run import Run
from rollstream.engines.settings import EngineSettings
from rollstream.engines.vllm.engine import VllmEngine
from rollstream.engines.vllm.places import Reserve
from rollstream.generator.serve.app import build_app
from rollstream.generator.serve.asking import CallLayer
from rollstream.generator.serve.lane import ServingLane
from rollstream.generator.serve.publishing import publish_spooled
from rollstream.generator.serve.recorder import SpoolRecorder
from rollstream.generator.serve.recording import RecordingEngine
from rollstream.generator.serve.settings import ServeSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.local.stack import LocalStack
from rollstream.process.settings.base import KafkaSettings
from tests.bench.endpoints import UnrecordedEngine, an_endpoint, streamed
from tests.bench.live_engine import SHAPES, take_engine_cores, write_model
from tests.bench.pairs import compared, count_option, in_turn, medians, scratch, tell
from tests.harness.late import Late

# It imports torch, and torch asks for its number of threads once: not before `take_engine_cores` has said it.
_vllm = Late("rollstream.generator.serve.vllm")

_SHAPE: Final = replace(SHAPES["demo"], max_model_len=256)
_MAX_NUM_SEQS: Final = 64
_KV_CACHE_BYTES: Final = 2**28
_TARGET: Final = 1.10
_FIGURES: Final = ("per_token", "first_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The clients of each side. `ports`: of the endpoints, by the side's name."""

    ports: dict[str, int]
    cores: Collection[int] | None
    num_clients: int
    seconds: int
    mean_tokens: int

    async def streams(self, side: str) -> dict[str, float]:
        """What clients see of a side."""
        return await streamed(
            self.ports[side],
            num_clients=self.num_clients,
            seconds=self.seconds,
            mean_tokens=self.mean_tokens,
            cores=self.cores,
        )


@click.command("serve")
@count_option("--rounds", 7, 1, "Runs of all sides, in turn; medians count.")
@count_option("--seconds", 8, 3, "Measured on each side.", most=600)
@count_option("--clients", 16, 1, "Clients that stream.")
@count_option("--tokens", 96, 2, "Of an answer on average: half to one and a half times as many.", most=128)
def command(rounds: int, seconds: int, clients: int, tokens: int) -> None:
    """Time per token and to the first one (p95): recorded ÷ with logprobs alone, at most 1.10.

    Beside it the price of logprobs: with them ÷ without, by the same routes. All three have the guard before them, and
    the layer that says whose a call is.
    """
    with scratch() as directory, asyncio.Runner() as runner:
        cores = take_engine_cores()
        write_model(directory / "model", _SHAPE)
        stack = AsyncExitStack()
        try:
            engine = runner.run(_started(directory, stack))
            kafka = LocalStack(directory / "stack", placement=replace(cores.rest, dies_with_parent=True))
            stack.callback(kafka.down)
            kafka.up()
            ports = runner.run(_endpoints(engine, directory, kafka.kafka.bootstrap_servers, stack))
            load = Load(ports=ports, cores=cores.rest.cores, num_clients=clients, seconds=seconds, mean_tokens=tokens)
            figures = _compare(load, rounds, runner)
        finally:
            runner.run(stack.aclose())
    tell("serve", figures, {"rounds": rounds, "seconds": seconds, "clients": clients, "tokens": tokens})


def _compare(load: Load, rounds: int, runner: asyncio.Runner) -> dict[str, Any]:
    for side in load.ports:
        runner.run(load.streams(side))  # not part of the result: code and caches are cold
    # A loop of its own for each side binds the side.
    sides = {side: (lambda side=side: runner.run(load.streams(side))) for side in load.ports}
    found = in_turn(sides, rounds, _told)
    ratios = {figure: [_ratio(one, "recorded", "logprobs", figure) for one in found] for figure in _FIGURES}
    prices = {figure: [_ratio(one, "logprobs", "bare", figure) for one in found] for figure in _FIGURES}
    return {
        **compared(ratios["per_token"]),
        "target": _TARGET,
        "first_token": compared(ratios["first_token"]),
        "price_of_logprobs": {figure: compared(price)["ratio"] for figure, price in prices.items()},
        **{side: _rounded(medians([one[side] for one in found])) for side in load.ports},
    }


def _ratio(found: dict[str, dict[str, float]], side: str, other: str, figure: str) -> float:
    return found[side][figure] / found[other][figure]


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in figures.items()}


def _told(found: dict[str, dict[str, float]]) -> str:
    ratios = (f"{figure} {_ratio(found, 'recorded', 'logprobs', figure):.3f}" for figure in _FIGURES)
    return f"recorded ÷ logprobs alone: {', '.join(ratios)}"


async def _started(directory: Path, stack: AsyncExitStack) -> VllmEngine:
    engine = VllmEngine(_engine_settings(directory), Reserve(num_places=_MAX_NUM_SEQS // 8))
    await engine.start(weight_version=0)
    stack.push_async_callback(engine.close)
    return engine


async def _endpoints(engine: VllmEngine, directory: Path, brokers: str, stack: AsyncExitStack) -> dict[str, int]:
    """The ports of the three sides."""
    settings = GeneratorSettings(
        run="bench-serve",
        kafka=KafkaSettings(bootstrap_servers=brokers),
        weight_store=str(directory / "weights"),
        engine=_engine_settings(directory),
        serve=ServeSettings(enabled=True, model_name="bench", spool=directory / "spool"),
    )
    recorder = await _recorder(engine, settings, stack)
    apps: dict[str, Any] = {"recorded": (await build_app(engine, settings, recorder)).app}
    for side, logprobs in (("logprobs", True), ("bare", False)):
        unrecorded = cast(RecordingEngine, UnrecordedEngine(engine, logprobs=logprobs))
        apps[side] = CallLayer(
            await _vllm.vllm_routes(unrecorded, settings.serve, settings.engine, "bench"),
            lane=ServingLane(_MAX_NUM_SEQS, settings.serve.max_waiting),
            recorder=recorder,
            subject_secret=None,
            reads_control_tokens=True,
        )
    return {side: await stack.enter_async_context(an_endpoint(app, side)) for side, app in apps.items()}


async def _recorder(engine: VllmEngine, settings: GeneratorSettings, stack: AsyncExitStack) -> SpoolRecorder:
    """The recorder of a generator, and what publishes its spool."""
    run = Run(settings)
    run.admin().create_topics(run.name)
    recorder = await SpoolRecorder.opened(settings.serve, run, identity_of(engine, "bench"))
    stack.push_async_callback(recorder.close)
    publishing = asyncio.create_task(publish_spooled(recorder, run, "bench"))

    async def end() -> None:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing

    stack.push_async_callback(end)
    return recorder


def _engine_settings(directory: Path) -> EngineSettings:
    return EngineSettings(
        model_path=directory / "model",
        max_model_len=_SHAPE.max_model_len,
        max_num_seqs=_MAX_NUM_SEQS,
        kv_cache_bytes=_KV_CACHE_BYTES,
    )
