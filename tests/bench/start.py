"""`python -m tests.bench start`: what each stage's start costs after many optimizer steps, against after few."""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import tomli_w

from rollstream.local.ports import free_ports
from rollstream.local.processes import ChildProcess, stop_all
from rollstream.local.supervisor import stage_process
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.files import write_private
from rollstream.process.settings.base import STAGES, KafkaSettings, Stage
from rollstream.schemas.errors import BrokenWorldError
from tests.bench.long_history import HistoryShape, write_history
from tests.bench.pairs import a_broker, a_pair, count_option, medians, tell
from tests.harness.scraping import is_ready

_TARGET: Final = 1.2
_TIMES: Final = 10
_READY_SECONDS: Final = 1800.0
_GRACE_SECONDS: Final = 60.0
_LOOK_EVERY_SECONDS: Final = 0.02


@click.command("start")
@count_option("--steps", 2000, 1, "Of the shorter history.")
@count_option("--rounds", 3, 1, "Starts of each, in turn.")
@count_option("--groups-per-step", 8, 1)
@count_option("--group-size", 8, 2)
def command(steps: int, rounds: int, groups_per_step: int, group_size: int) -> None:
    """Start time and peak memory of each stage after ten times the steps ÷ after the steps. The worst ratio counts.

    Fills `prompts`, `producers`, `weights` and `ledger`, with a checkpoint at the end; no stage reads other topics from
    their start.
    Target: at most 1.2.
    """
    shape = HistoryShape(steps=steps, groups_per_step=groups_per_step, group_size=group_size)
    with a_broker() as (kafka, directory):
        figures = measure(kafka, directory, shape, rounds)
    tell("start", figures)


def measure(kafka: KafkaSettings, directory: Path, shape: HistoryShape, rounds: int) -> dict[str, Any]:
    """Write both histories, start each stage on both in turn, and divide the medians."""
    write_tiny_model(directory / "model", seed=0)
    sizes = (shape.steps, _TIMES * shape.steps)
    configs = {size: _run_with_history(kafka, directory, shape.of_steps(size)) for size in sizes}
    starts: dict[Stage, list[dict[int, dict[str, float]]]] = {stage: [] for stage in STAGES}
    for number in range(rounds):
        for stage, found in starts.items():
            found.append(a_pair({size: partial(_start, stage, config) for size, config in configs.items()}, number))
    stages = {stage: _compared(found) for stage, found in starts.items()}
    return {
        "ratio": max(max(stage["ratio_seconds"], stage["ratio_peak_mib"]) for stage in stages.values()),
        "target": _TARGET,
        "stages": stages,
        "settings": {
            "steps": sizes, "rounds": rounds, "groups_per_step": shape.groups_per_step, "group_size": shape.group_size,
        },
    }  # fmt: skip


def _compared(pairs: Sequence[dict[int, dict[str, float]]]) -> dict[str, Any]:
    few, many = pairs[0]
    middle = {size: medians([pair[size] for pair in pairs]) for size in (few, many)}
    found: dict[str, Any] = {}
    for figure in ("seconds", "peak_mib"):
        found[figure] = {str(size): round(values[figure], 2) for size, values in middle.items()}
        found[f"ratio_{figure}"] = round(middle[many][figure] / middle[few][figure], 3)
    return found


def _start(stage: Stage, config: Path) -> dict[str, float]:
    """Start a stage, wait until it is ready, and end it: the seconds until then, and its largest memory."""
    port = free_ports(1)[0]
    log = config.with_name(f"{config.stem}-{stage}.log")
    command = stage_process(stage, config).command
    began = time.monotonic()
    process = ChildProcess.start(command, log, env={**os.environ, "ROLLSTREAM_HEALTH_PORT": str(port)})
    try:
        while not is_ready(port):
            if not process.is_running() or time.monotonic() - began > _READY_SECONDS:
                raise BrokenWorldError(f"the {stage} was not ready: {log.read_text()[-2000:]}")
            time.sleep(_LOOK_EVERY_SECONDS)
        return {"seconds": time.monotonic() - began, "peak_mib": _peak_mib(process.pid)}
    finally:
        stop_all([process], _GRACE_SECONDS)


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) / 1024


def _run_with_history(kafka: KafkaSettings, directory: Path, shape: HistoryShape) -> Path:
    """A run's settings file, after its topics were filled."""
    model = directory / "model"
    own = directory / f"after-{shape.steps}"
    own.mkdir()
    document = {
        "run": f"bench-start-{shape.steps}",
        "weight_store": str(own / "weights"),
        "groups_per_step": shape.groups_per_step,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "producer": {
            "name": shape.producer, "environment": "sort_digits", "group_size": shape.group_size,
            "sampling": {"temperature": 1.0, "max_tokens": 12},
        },
        "generator": {"engine": {"kind": "scripted", "model_path": str(model)}},
        "trainer": {"model_path": str(model), "checkpoints": str(own / "checkpoints"), "learning": {"threads": 1}},
    }  # fmt: skip
    config = own / "rollstream.toml"
    write_private(config, tomli_w.dumps(document))
    write_history(config, shape)
    return config
