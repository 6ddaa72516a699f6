"""`python -m tests.bench serve-reserve`: what training costs clients of one engine, and what they cost training."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import click
from uvicorn._types import ASGI3Application

from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.engines.vllm.engine import VllmEngine
from rollstream.engines.vllm.places import NO_RESERVE, TrainingPlaces
from rollstream.generator.serve.app import build_app
from rollstream.generator.serve.call import ServedCall
from rollstream.generator.serve.settings import ServeSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.settings.base import KafkaSettings
from tests.bench.endpoints import an_endpoint, streamed
from tests.bench.live_engine import SHAPES, DirectLoad, Watched, take_engine_cores, write_model
from tests.bench.pairs import compared, count_option, in_turn, medians, scratch, tell
from tests.bench.window import a_window

MAX_NUM_SEQS: Final = 64
_RESERVED: Final = MAX_NUM_SEQS // 8
_CALL_TOKENS: Final = 32
_TRAINING: Final = replace(SHAPES["demo"], max_tokens=200, max_model_len=256)
_KV_CACHE_BYTES: Final = 2**28
_SETTLE_SECONDS: Final = 2.0
_TARGETS: Final = {"first_token": 3.0, "training": 0.97}


class Unspooled:
    """A recorder that keeps no answer: here the places in the engine are measured."""

    def refuse_if_full(self) -> None:
        """Never refuses."""

    async def keep(self, call: ServedCall) -> None:
        """Forgets the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One engine, with an endpoint and places in reserve, or without both.

    Two engines with one model would differ by as much as is measured: by 0.904 to 1.006 in seven pairs.
    """

    engine: VllmEngine
    app: ASGI3Application
    cores: Collection[int] | None
    seconds: int
    num_clients: int
    num_offered: int

    async def streams(self) -> dict[str, float]:
        """What clients see of the engine."""
        async with an_endpoint(self.app, "bench") as port:
            return await streamed(
                port,
                num_clients=self.num_clients,
                seconds=self.seconds,
                mean_tokens=_CALL_TOKENS,
                cores=self.cores,
            )

    async def streams_beside_training(self) -> dict[str, float]:
        """The same while training offers more than the engine takes."""
        async with self._load(self.engine):
            await asyncio.sleep(_SETTLE_SECONDS)
            return await self.streams()

    async def trains_beside_endpoint(self) -> dict[str, float]:
        """Tokens a second of training; nobody calls."""
        async with an_endpoint(self.app, "bench"):
            return await self._trained()

    async def trains_alone(self) -> dict[str, float]:
        """The same where nobody can call."""
        reserved, self.engine._places = self.engine._places, TrainingPlaces(MAX_NUM_SEQS, NO_RESERVE)
        try:
            return await self._trained()
        finally:
            self.engine._places = reserved

    async def _trained(self) -> dict[str, float]:
        watched = Watched(self.engine)
        async with self._load(watched) as load:
            await asyncio.sleep(_SETTLE_SECONDS)
            window = await a_window(watched, self.seconds)
            return {"tokens_per_second": window.tokens_of(load.answers) / (window.ended - window.began)}

    def _load(self, engine: VllmEngine | Watched) -> DirectLoad:
        return DirectLoad(engine=cast(Engine, engine), shape=_TRAINING, concurrency=self.num_offered)


@click.command("serve-reserve")
@count_option("--rounds", 7, 1, "Runs of all sides, in turn; medians count.")
@count_option("--seconds", 8, 3, "Measured on each side.", most=600)
@count_option("--clients", _RESERVED // 2, 1, "Clients that stream.")
@count_option("--offered", 2 * MAX_NUM_SEQS, 1, "Requests that training offers at once.")
def command(rounds: int, seconds: int, clients: int, offered: int) -> None:
    """Time to first token (p95) at saturated training ÷ without; training beside an idle endpoint ÷ without one.

    An eighth of the places is in reserve. Targets: at most 3, at least 0.97.
    """
    settings = {"rounds": rounds, "seconds": seconds, "clients": clients, "offered": offered}
    with scratch() as directory, asyncio.Runner() as runner:
        cores = take_engine_cores()
        write_model(directory / "model", _TRAINING)
        stack = AsyncExitStack()
        try:
            engine, app = runner.run(_serving(directory, stack))
            sides = Sides(
                engine=engine,
                app=app,
                cores=cores.rest.cores,
                seconds=seconds,
                num_clients=clients,
                num_offered=offered,
            )
            figures = _compare(sides, rounds, runner)
        finally:
            runner.run(stack.aclose())
    tell("serve-reserve", figures, {**settings, "max_num_seqs": MAX_NUM_SEQS, "reserved": _RESERVED})


def _compare(sides: Sides, rounds: int, runner: asyncio.Runner) -> dict[str, Any]:
    runner.run(sides.streams_beside_training())  # not part of the result: code and caches are cold
    found = in_turn(
        {
            "alone": lambda: runner.run(sides.streams()),
            "beside_training": lambda: runner.run(sides.streams_beside_training()),
            "idle_endpoint": lambda: runner.run(sides.trains_beside_endpoint()),
            "no_endpoint": lambda: runner.run(sides.trains_alone()),
        },
        rounds,
        lambda one: f"first token {_first_token(one):.2f}, training {_training(one):.3f}",
    )
    return {
        **compared([_first_token(one) for one in found]),
        "training": compared([_training(one) for one in found]),
        "targets": _TARGETS,
        **{
            side: {name: round(value, 4) for name, value in medians([one[side] for one in found]).items()}
            for side in found[0]
        },
    }


def _first_token(found: dict[str, dict[str, float]]) -> float:
    return found["beside_training"]["first_token"] / found["alone"]["first_token"]


def _training(found: dict[str, dict[str, float]]) -> float:
    return found["idle_endpoint"]["tokens_per_second"] / found["no_endpoint"]["tokens_per_second"]


async def _serving(directory: Path, stack: AsyncExitStack) -> tuple[VllmEngine, ASGI3Application]:
    """The engine and what answers its clients."""
    settings = GeneratorSettings(
        run="bench",
        kafka=KafkaSettings(),
        weight_store=str(directory / "weights"),
        engine=_engine_settings(directory),
        serve=ServeSettings(enabled=True, reserve=_RESERVED, lend_after_seconds=1.0, model_name="bench"),
    )
    engine = VllmEngine(settings.engine, settings.reserve)
    await engine.start(weight_version=0)
    stack.push_async_callback(engine.close)
    return engine, (await build_app(engine, settings, Unspooled())).app


def _engine_settings(directory: Path) -> EngineSettings:
    return EngineSettings(
        model_path=directory / "model",
        max_model_len=_TRAINING.max_model_len,
        max_num_seqs=MAX_NUM_SEQS,
        kv_cache_bytes=_KV_CACHE_BYTES,
    )
