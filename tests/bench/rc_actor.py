"""`python -m tests.bench rc-actor`: the Reasoning Cache actor against a server that answers at once."""

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import numpy as np
import psutil

from rollstream.engines.build import build_engine
from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.protocol import GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.local.ports import free_ports
from rollstream.process.stop import Stop
from rollstream.rc_actor.actor import run_actor
from rollstream.rc_actor.reading import read_settings
from rollstream.schemas.prompt import Message, Sampling
from tests.bench.pairs import count_option, say, scratch, tell

_CYCLES: Final = 3
_TURNS: Final = 2 * _CYCLES
_PLACES: Final = 64
_ASKED: Final = (Message(role="user", content="What is 2 + 2? " * 10),)


@click.command("rc-actor")
@count_option("--problems", 10_000, 1000, "Problems, each one sample of three cycles.")
def command(problems: int) -> None:
    """CPU of a turn beyond that of the bare engine's call, and memory. Targets: 1 ms; flat.

    The server is another process. Scoring is a process of its own.
    """
    with scratch() as directory, _server() as url:
        few = _run(directory / "few", url, problems // 10)
        say(f"{problems // 10} problems: {few}")
        many = _run(directory / "many", url, problems)
        bare = _bare(url, min(10_000, problems * _TURNS))
    beyond = (many["cpu_seconds"] / (problems * _TURNS) - bare) * 1000
    figures = {
        "cpu_milliseconds_a_turn_beyond_the_call": round(beyond, 3),
        "target": 1.0,
        "bare_call_milliseconds": round(bare * 1000, 3),
        "turns_per_second": round(problems * _TURNS / many["seconds"], 1),
        "memory_growth_mib": round(many["peak_mib"] - few["peak_mib"], 1),
        "peak_mib": round(many["peak_mib"], 1),
    }
    tell("rc-actor", figures, {"problems": problems, "cycles": _CYCLES})


def _run(directory: Path, url: str, problems: int) -> dict[str, float]:
    directory.mkdir()
    data = directory / "problems.jsonl"
    lines = ({"problem": f"{'What is 2 + 2? ' * 10}{row}", "answer": "yes"} for row in range(problems))
    data.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = [
        f"output_dir={directory / 'out'}", "model_path=tiny", f"train_dataset_names=[{data}]", f"me.llm_urls={url}",
        f"actor.num_reasoning_steps={_CYCLES}", "environment.name=sort_digits", f"actor.llm_max_rollouts={_PLACES}",
        "debug.mode=false",
    ]  # fmt: skip
    began, cpu = time.monotonic(), time.process_time()
    code = run_actor(read_settings("test_rc", words), Stop(), say)
    if code:
        raise SystemExit(code)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu, "peak_mib": peak}


def _bare(url: str, calls: int) -> float:
    """CPU seconds of a call that the engine makes alone, as many side by side."""

    async def ask() -> float:
        engine = build_engine(
            EngineSettings.model_validate(
                {"kind": "openai_http", "http": HttpSettings(urls=(url,), model="tiny", max_connections=_PLACES)}
            )
        )
        await engine.start(weight_version=0)
        request = GenerationRequest(
            request_id="bare",
            prompt_token_ids=np.zeros(0, dtype=np.int32),
            sampling=Sampling(),
            max_tokens=16,
            seed=None,
            messages=_ASKED,
        )
        began = time.process_time()
        for _ in range(calls // _PLACES):
            await asyncio.gather(*(engine.generate(request) for _ in range(_PLACES)))
        used = time.process_time() - began
        await engine.close()
        return used / (calls // _PLACES * _PLACES)

    return asyncio.run(ask())


@contextmanager
def _server() -> Iterator[str]:
    [port] = free_ports(1)
    words = [sys.executable, "-m", "tests.harness.fake_openai", str(port), "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        psutil.Process(process.pid).kill()
        process.wait()
