"""`python -m tests.bench generator`: the stage with Kafka against the same engine, given the same prompts directly."""

import asyncio
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple, cast

import click
import psutil

from rollstream.bus.run import Run
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.generator.handler import AHEAD
from rollstream.generator.loop import run_on
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
    Answered,
    DirectLoad,
    Shape,
    Watched,
    prompts,
    started_engine,
    take_engine_cores,
    write_model,
)

_CONCURRENCIES: Final = (64, 128, 256)
_WARM_UP_SECONDS: Final = 10.0
_COOL_DOWN_SECONDS: Final = 900.0
_PUBLISHED_SECONDS: Final = 2.0
"""The stage publishes a sample after its last request has ended."""
_START_SECONDS: Final = 240.0
_SPARE: Final = 1.5
"""How many prompts are submitted, relative to what the engine alone would answer in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side did within its window. CPU time is that of this process and the engine's, without the broker's."""

    tokens_per_second: float
    cpu_microseconds_per_token: float


class Best(NamedTuple):
    """The engine's best concurrency, its speed there, and about how many seconds samples in flight take to end."""

    concurrency: int
    tokens_per_second: float
    cool_down: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that is measured, in Unix seconds, and the CPU time used within it."""

    began: float
    ended: float
    cpu_seconds: float

    def tokens_of(self, answers: Iterable[Answered]) -> float:
        """The tokens that were sampled within the window: of each answer, in proportion to its time in the window.

        A sample may take as long as the window, and the samples of a group end together. If all tokens of a sample
        counted at its end, the figure would depend on where exactly the window begins and ends.
        """
        return sum(
            answer.num_tokens
            * max(0.0, min(answer.ended, self.ended) - max(answer.began, self.began))
            / (answer.ended - answer.began)
            for answer in answers
        )


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
@click.option(
    "--pairs",
    default=7,
    show_default=True,
    type=click.IntRange(min=1),
    help="Runs of both sides, in turn; medians count.",
)
@click.option("--seconds", default=20, show_default=True, type=click.IntRange(1, 3600), help="Measured on each side.")
def command(shape: str, pairs: int, seconds: int) -> None:
    """Tokens a second of the stage ÷ those of the engine alone at its best concurrency.

    Targets: 0.95 for 10 M parameters and 200 tokens; 0.8 for the demo's model, lengths and groups.
    """
    with tempfile.TemporaryDirectory(prefix="rollstream-bench-") as name:
        report = asyncio.run(_measure(Path(name), SHAPES[shape], pairs, seconds))
    settings = {"shape": shape, **asdict(SHAPES[shape]), "pairs": pairs, "seconds": seconds, "brokers": 1}
    click.echo(json.dumps({**report, "settings": settings}, indent=2))


async def _measure(directory: Path, shape: Shape, pairs: int, seconds: int) -> dict[str, Any]:
    cores = take_engine_cores()
    write_model(directory / "model", shape)
    engine = await started_engine(directory / "model", max_model_len=shape.max_model_len)
    myself = psutil.Process()
    processes = (myself, *myself.children(recursive=True))
    stack = LocalStack(directory / "stack", placement=replace(cores.rest, dies_with_parent=True))
    try:
        stack.up()
        bench = Bench(
            watched=Watched(engine), processes=processes, stack=stack, directory=directory, shape=shape, seconds=seconds
        )
        return await _compare(bench, pairs)
    finally:
        stack.down()
        await engine.close()


async def _compare(bench: Bench, pairs: int) -> dict[str, Any]:
    # Not part of the result: the first run is slow, because code and caches are cold.
    _say("warming up")
    await _direct(bench, _CONCURRENCIES[0])
    sweep: dict[int, Side] = {}
    for number in _CONCURRENCIES:
        sweep[number] = await _direct(bench, number)
        _say(f"the engine alone, {number} requests at once: {sweep[number].tokens_per_second:.0f} tokens/s")
    number = max(sweep, key=lambda concurrency: sweep[concurrency].tokens_per_second)
    best = Best(number, sweep[number].tokens_per_second, _cool_down(bench.shape, int(AHEAD * number), sweep[number]))
    _say(f"each of {pairs} pairs takes {2 * _run_seconds(bench, best.cool_down) / 60:.1f} minutes or more")
    found: list[tuple[Side, Side]] = []
    for pair in range(pairs):
        if pair % 2:
            staged = await _staged(bench, f"bench-{pair}", best)
            direct = await _direct(bench, best.concurrency)
        else:
            direct = await _direct(bench, best.concurrency)
            staged = await _staged(bench, f"bench-{pair}", best)
        found.append((staged, direct))
        _say(
            f"pair {pair + 1} of {pairs}: the stage {staged.tokens_per_second:.0f} tokens/s ÷ the engine alone "
            f"{direct.tokens_per_second:.0f} tokens/s = {_ratio(staged, direct):.3f}"
        )
    return _report(bench, found, best.concurrency, sweep)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _run_seconds(bench: Bench, cool_down: float) -> float:
    return _WARM_UP_SECONDS + bench.seconds + cool_down


def _cool_down(shape: Shape, in_flight: int, side: Side) -> float:
    """About how many seconds after the window every sample in flight has ended."""
    return 2.0 + 1.4 * shape.longest * in_flight / side.tokens_per_second


def _num_prompts(bench: Bench, best: Best) -> int:
    tokens = best.tokens_per_second * _run_seconds(bench, best.cool_down) * _SPARE
    shortest = bench.shape.max_tokens or 4
    return int(tokens / (shortest * bench.shape.group_size)) + MAX_NUM_SEQS


async def _direct(bench: Bench, concurrency: int) -> Side:
    async with DirectLoad(engine=bench.engine, shape=bench.shape, concurrency=concurrency) as load:
        window = await _window(bench)
    return _side(window, load.answers)


async def _staged(bench: Bench, name: str, best: Best) -> Side:
    """Run the stage on prompts that were submitted before. A sample ends at the broker's timestamp of its record."""
    num_prompts = _num_prompts(bench, best)
    settings = _settings(bench, name, best)
    run = Run(settings)
    _submit(bench, run, num_prompts)
    stage = asyncio.create_task(run_on(bench.engine, settings, Health(), Stop()))
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
    return _side(window, answers)


async def _window(bench: Bench) -> Window:
    """The window that is measured, once every sample has ended that began in it: its tokens count in proportion."""
    await asyncio.sleep(_WARM_UP_SECONDS)
    began, cpu = time.time(), bench.cpu_seconds()
    await asyncio.sleep(bench.seconds)
    window = Window(began=began, ended=time.time(), cpu_seconds=bench.cpu_seconds() - cpu)
    while bench.watched.runs_since_before(window.ended):
        if time.time() - window.ended > _COOL_DOWN_SECONDS:
            raise BrokenWorldError(
                f"samples of the window have not ended {_COOL_DOWN_SECONDS:.0f} s later: the machine is too slow or "
                "too busy; end other work on it"
            )
        await asyncio.sleep(0.1)
    return window


def _side(window: Window, answers: Sequence[Answered]) -> Side:
    tokens = window.tokens_of(answers)
    if not tokens:
        raise BrokenWorldError(
            f"no sample of the window gave a token in {window.ended - window.began:.0f} s: raise --seconds"
        )
    return Side(
        tokens_per_second=tokens / (window.ended - window.began),
        cpu_microseconds_per_token=1e6 * window.cpu_seconds / tokens,
    )


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
    stored = open_weight_store(bench.directory / "weights" / run.name).write(
        "0-bench", lambda path: _copy(bench.directory / "model", path)
    )
    version = WeightsPublished(
        model="policy", weight_version=0, uri=stored.uri, files=stored.files, step=0, created_at=utc_now()
    )
    publisher = run.publisher("bench")
    publisher.publish_soon(run.out_record(WEIGHTS, version))
    for prompt in itertools.islice(prompts(bench.shape, run.name), num_prompts):
        publisher.publish_soon(run.out_record(PROMPTS, prompt))
    publisher.close(60.0)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _published(run: Run) -> list[Answered]:
    return [
        Answered(
            began=sample.started_at.timestamp(),
            ended=message.timestamp_ms / 1000,
            num_tokens=sample.num_completion_tokens,
        )
        for message, sample in run.read_with_messages(ROLLOUTS)
    ]


def _ratio(staged: Side, direct: Side) -> float:
    return staged.tokens_per_second / direct.tokens_per_second


def _report(bench: Bench, found: list[tuple[Side, Side]], best: int, sweep: dict[int, Side]) -> dict[str, Any]:
    ratios = [_ratio(*pair) for pair in found]
    low, middle, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "bench": "generator",
        "ratio": round(middle, 3),
        "target": bench.shape.target,
        "ratio_quartiles": [round(low, 3), round(high, 3)],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "stage": _medians([staged for staged, _ in found]),
        "direct": {**_medians([direct for _, direct in found]), "concurrency": best},
        "direct_tokens_per_second_by_concurrency": {
            str(concurrency): round(side.tokens_per_second) for concurrency, side in sweep.items()
        },
    }


def _medians(sides: list[Side]) -> dict[str, float]:
    return {
        "tokens_per_second": round(median(side.tokens_per_second for side in sides)),
        "cpu_microseconds_per_token": round(median(side.cpu_microseconds_per_token for side in sides), 1),
    }
