"""`python -m tests.bench generator`: the stage with Kafka against the same engine, given the same prompts directly."""

import asyncio
import itertools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import click
import psutil

from rollstream.bus.run import Run
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.generator.handler import AHEAD
from rollstream.generator.loop import run_on
from rollstream.generator.parts import GeneratorParts
from rollstream.generator.settings import GeneratorSettings
from rollstream.history.weight_store import open_weight_store
from rollstream.local.stack import LocalStack
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.stop import Stop
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import PROMPTS, ROLLOUTS, WEIGHTS
from rollstream.schemas.weights import WeightsPublished
from tests.bench.live_engine import (
    MAX_NUM_SEQS,
    SHAPES,
    DirectLoad,
    EndedRequest,
    Shape,
    Watched,
    prompts,
    started_engine,
    take_engine_cores,
    write_model,
)
from tests.bench.pairs import compared, count_option, in_turn, medians, say, scratch, tell
from tests.bench.window import Window, a_window

_CONCURRENCIES: Final = (64, 128, 256)
_WARM_UP_SECONDS: Final = 10.0
_PUBLISHED_SECONDS: Final = 2.0
"""The stage publishes a sample after its last request has ended."""
_START_SECONDS: Final = 240.0
_SPARE: Final = 1.5
"""How many prompts are submitted, relative to what the engine alone would answer in the same time."""


Figures = dict[str, float]
"""What one side did within its window: tokens a second, and CPU time a token of this process and the engine's."""


class Best(NamedTuple):
    """The engine's best concurrency, its speed there, and about how many seconds samples in flight take to end."""

    concurrency: int
    tokens_per_second: float
    cool_down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What both sides share."""

    watched: Watched
    processes: Sequence[psutil.Process]
    stack: LocalStack
    directory: Path
    shape: Shape
    seconds: float

    @property
    def engine(self) -> Engine:
        """The engine of both sides."""
        return cast(Engine, self.watched)

    @property
    def kafka(self) -> KafkaSettings:
        """How to reach the bench's own broker."""
        return KafkaSettings(bootstrap_servers=self.stack.kafka.bootstrap_servers)

    def cpu_seconds(self) -> float:
        """CPU seconds used so far by this process and the engine's."""
        times = [process.cpu_times() for process in self.processes]
        return float(sum(one.user + one.system for one in times))


@click.command("generator")
@click.option("--shape", default="10m", show_default=True, type=click.Choice(sorted(SHAPES)), help="Model and lengths.")
@count_option("--pairs", 7, 1, "Runs of both sides, in turn; medians count.")
@count_option("--seconds", 20, 1, "Measured on each side.", most=3600)
def command(shape: str, pairs: int, seconds: int) -> None:
    """Tokens a second of the stage ÷ those of the engine alone at its best concurrency.

    Targets: 0.95 for 10 M parameters and 200 tokens; 0.8 for the demo's model, lengths and groups.
    """
    with scratch() as directory, asyncio.Runner() as runner:
        figures = _measure(directory, SHAPES[shape], pairs, seconds, runner)
    settings = {"shape": shape, **asdict(SHAPES[shape]), "pairs": pairs, "seconds": seconds, "brokers": 1}
    tell("generator", figures, settings)


def _measure(directory: Path, shape: Shape, pairs: int, seconds: int, runner: asyncio.Runner) -> dict[str, Any]:
    cores = take_engine_cores()
    write_model(directory / "model", shape)
    engine = runner.run(started_engine(directory / "model", max_model_len=shape.max_model_len))
    myself = psutil.Process()
    processes = (myself, *myself.children(recursive=True))
    stack = LocalStack(directory / "stack", placement=replace(cores.rest, dies_with_parent=True))
    try:
        stack.up()
        bench = Bench(
            watched=Watched(engine), processes=processes, stack=stack, directory=directory, shape=shape, seconds=seconds
        )
        return _compare(bench, pairs, runner)
    finally:
        stack.down()
        runner.run(engine.close())


def _compare(bench: Bench, pairs: int, runner: asyncio.Runner) -> dict[str, Any]:
    # Not part of the result: the first run is slow, because code and caches are cold.
    say("warming up")
    runner.run(_direct(bench, _CONCURRENCIES[0]))
    sweep: dict[int, float] = {}
    for number in _CONCURRENCIES:
        sweep[number] = runner.run(_direct(bench, number))["tokens_per_second"]
        say(f"the engine alone, {number} requests at once: {sweep[number]:.0f} tokens/s")
    number = max(sweep, key=lambda concurrency: sweep[concurrency])
    best = Best(number, sweep[number], _cool_down(bench.shape, int(AHEAD * number), sweep[number]))
    say(f"each of {pairs} pairs takes {2 * _run_seconds(bench, best.cool_down) / 60:.1f} minutes or more")
    names = (f"bench-{number}" for number in itertools.count())
    sides = {
        "direct": lambda: runner.run(_direct(bench, best.concurrency)),
        "stage": lambda: runner.run(_staged(bench, next(names), best)),
    }
    found = in_turn(sides, pairs, _told)
    return {
        **compared([_ratio(pair) for pair in found]),
        "target": bench.shape.target,
        "stage": _medians([pair["stage"] for pair in found]),
        "direct": {**_medians([pair["direct"] for pair in found]), "concurrency": best.concurrency},
        "direct_tokens_per_second_by_concurrency": {str(number): round(speed) for number, speed in sweep.items()},
    }


def _ratio(pair: Mapping[str, Figures]) -> float:
    return pair["stage"]["tokens_per_second"] / pair["direct"]["tokens_per_second"]


def _told(pair: Mapping[str, Figures]) -> str:
    speed = {side: figures["tokens_per_second"] for side, figures in pair.items()}
    return (
        f"the stage {speed['stage']:.0f} tokens/s ÷ the engine alone {speed['direct']:.0f} tokens/s = "
        f"{_ratio(pair):.3f}"
    )


def _medians(runs: Sequence[Figures]) -> dict[str, float]:
    found = medians(runs)
    return {
        "tokens_per_second": round(found["tokens_per_second"]),
        "cpu_microseconds_per_token": round(found["cpu_microseconds_per_token"], 1),
    }


def _run_seconds(bench: Bench, cool_down: float) -> float:
    return _WARM_UP_SECONDS + bench.seconds + cool_down


def _cool_down(shape: Shape, in_flight: int, tokens_per_second: float) -> float:
    """About how many seconds after the window every sample in flight has ended."""
    return 2.0 + 1.4 * shape.longest * in_flight / tokens_per_second


def _num_prompts(bench: Bench, best: Best) -> int:
    tokens = best.tokens_per_second * _run_seconds(bench, best.cool_down) * _SPARE
    shortest = bench.shape.max_tokens or 4
    return int(tokens / (shortest * bench.shape.group_size)) + MAX_NUM_SEQS


async def _direct(bench: Bench, concurrency: int) -> Figures:
    async with DirectLoad(engine=bench.engine, shape=bench.shape, concurrency=concurrency) as load:
        window = await _window(bench)
    return _figures(window, load.answers)


async def _staged(bench: Bench, name: str, best: Best) -> Figures:
    """Run the stage on prompts that were submitted before. A sample ends at the broker's timestamp of its record."""
    num_prompts = _num_prompts(bench, best)
    settings = _settings(bench, name, best)
    run = Run(settings)
    _submit(bench, run, num_prompts)
    stage = asyncio.create_task(run_on(GeneratorParts(engine=bench.engine, settings=settings), Health(), Stop()))
    try:
        await _first_sample(bench, stage)
        window = await _window(bench)
        await asyncio.sleep(_PUBLISHED_SECONDS)
        if stage.done():
            stage.result()
    finally:
        stage.cancel()
        await asyncio.wait([stage])
    answers = _published(run)
    if len(answers) >= num_prompts * bench.shape.group_size:
        raise BrokenWorldError(
            f"the stage ran out of its {num_prompts} prompts within {bench.seconds} s: the machine was busier before; "
            "end other work on it"
        )
    run.admin().delete_topics(run.name)
    return _figures(window, answers)


async def _window(bench: Bench) -> Window:
    await asyncio.sleep(_WARM_UP_SECONDS)
    return await a_window(bench.watched, bench.seconds, bench.cpu_seconds)


def _figures(window: Window, answers: Sequence[EndedRequest]) -> Figures:
    tokens = window.tokens_of(answers)
    if not tokens:
        raise BrokenWorldError(
            f"no sample of the window gave a token in {window.ended - window.began:.0f} s: raise --seconds"
        )
    return {
        "tokens_per_second": tokens / (window.ended - window.began),
        "cpu_microseconds_per_token": 1e6 * window.cpu_seconds / tokens,
    }


async def _first_sample(bench: Bench, stage: "asyncio.Task[None]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not bench.engine.in_flight:
        if stage.done():
            stage.result()
        if time.monotonic() > deadline:
            raise BrokenWorldError(f"the stage asked the engine nothing within {_START_SECONDS} s")
        await asyncio.sleep(0.05)


def _settings(bench: Bench, run: str, best: Best) -> GeneratorSettings:
    return GeneratorSettings(
        run=run,
        kafka=bench.kafka,
        redis_url=bench.stack.redis.url,
        weight_store=str(bench.directory / "weights" / run),
        # What the stage has in hand follows from it. The engine runs already, and could run more.
        engine=EngineSettings(model_path=bench.directory / "model", max_num_seqs=best.concurrency),
    )


def _submit(bench: Bench, run: Run, num_prompts: int) -> None:
    """Publish version 0 and the prompts."""
    run.admin().create_topics(run.name)

    def copy(path: Path) -> None:
        shutil.copytree(bench.directory / "model", path, dirs_exist_ok=True)

    stored = open_weight_store(bench.directory / "weights" / run.name).write("0-bench", copy)
    version = WeightsPublished(
        model="policy", weight_version=0, uri=stored.uri, files=stored.files, step=0, created_at=utc_now()
    )
    publisher = run.publisher("bench")
    publisher.publish_soon(run.out_record(WEIGHTS, version))
    for prompt in itertools.islice(prompts(bench.shape, run.name), num_prompts):
        publisher.publish_soon(run.out_record(PROMPTS, prompt))
    publisher.close(60.0)


def _published(run: Run) -> list[EndedRequest]:
    return [
        EndedRequest(
            began=sample.started_at.timestamp(),
            ended=message.timestamp_ms / 1000,
            num_tokens=sample.num_completion_tokens,
        )
        for message, sample in run.read_with_messages(ROLLOUTS)
    ]
