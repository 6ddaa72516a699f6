"""`rollstream bench loop`: the whole loop on this machine against TRL's GRPOTrainer, one after the other.

Both sides get the same cores, model, prompts, group size, loss, minibatches and dtype, and both train on groups without
spread. TRL runs in an environment of its own that uv makes (`trl_requirements.txt`): its dependencies are not ours.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from rollstream.bus.run import Run
from rollstream.environments.sort_digits import SortDigits
from rollstream.local.bench.cpu_seconds import CpuSeconds
from rollstream.local.cores import divide_cores
from rollstream.local.demo import options, prepare
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.watch import LoopWatch
from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import StageState, Supervisor, stage_process
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError

_TARGET: Final = 1.0
_WARM_UP_STEPS: Final = 5
_STALLED_SECONDS: Final = 300.0
_TRL_SECONDS: Final = 1800.0
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One side of a pair, without its warm-up."""

    steps_per_minute: float
    trained_tokens_per_second: float
    cpu_seconds_per_step: dict[str, float]
    """By process."""


@click.command("loop")
@click.option("--seeds", default="1,2,3", show_default=True, help="One pair of runs for each of these seeds.")
@click.option("--steps", default=60, show_default=True, type=click.IntRange(min=10), help="Measured steps of a run.")
@click.option(
    "--trl-threads",
    default=len(os.sched_getaffinity(0)),
    show_default="one a core",
    type=click.IntRange(min=1),
    help="Threads of torch in TRL's process.",
)
def command(seeds: str, steps: int, trl_threads: int) -> None:
    """Optimizer steps a minute of the whole loop, with the demo's model and task, ÷ those of TRL's GRPOTrainer.

    Target: 1.0. The first time uv fetches TRL and PyTorch for it.
    """
    found = []
    for index, seed in enumerate(_numbers(seeds)):
        with tempfile.TemporaryDirectory(prefix="rollstream-bench-") as name:
            demo = DemoOptions(run_dir=Path(name) / "loop", seed=seed, num_steps=steps + _WARM_UP_STEPS)
            prepare.warm_up(demo)
            sides = {}
            for side in ("rollstream", "trl") if index % 2 == 0 else ("trl", "rollstream"):
                sides[side] = _ours(demo) if side == "rollstream" else _theirs(demo, trl_threads)
        found.append(sides)
        ratio = sides["rollstream"].steps_per_minute / sides["trl"].steps_per_minute
        click.echo(f"seed {seed}: {ratio:.3f}", err=True)
    click.echo(json.dumps(_report(found, {"seeds": seeds, "steps": steps, "trl_threads": trl_threads}), indent=2))


def _numbers(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError as error:
        raise click.BadParameter(
            f"{seeds!r}: name whole numbers with commas between them", param_hint="--seeds"
        ) from error


def _report(found: Sequence[dict[str, Measured]], settings: dict[str, Any]) -> dict[str, Any]:
    def figures(side: str) -> dict[str, Any]:
        runs = [pair[side] for pair in found]
        processes = sorted({name for run in runs for name in run.cpu_seconds_per_step})
        return {
            "steps_per_minute": [round(run.steps_per_minute, 1) for run in runs],
            "trained_tokens_per_second": [round(run.trained_tokens_per_second) for run in runs],
            "cpu_seconds_per_step": {
                name: round(median(run.cpu_seconds_per_step.get(name, 0.0) for run in runs), 3) for name in processes
            },
        }

    def ratios(of: str) -> list[float]:
        return [round(getattr(pair["rollstream"], of) / getattr(pair["trl"], of), 3) for pair in found]

    return {
        "bench": "loop",
        "ratio": median(ratios("steps_per_minute")),
        "target": _TARGET,
        "ratios": ratios("steps_per_minute"),
        "ratios_of_trained_tokens": ratios("trained_tokens_per_second"),
        "rollstream": figures("rollstream"),
        "trl": figures("trl"),
        "settings": {
            **settings,
            "warm_up_steps": _WARM_UP_STEPS,
            "groups_per_step": options.GROUPS_PER_STEP,
            "group_size": options.GROUP_SIZE,
            "max_tokens": options.MAX_TOKENS,
            "dtype": "float32",
            "trl_requirements": (_HERE / "trl_requirements.txt").read_text().split(),
        },
    }


def _ours(demo: DemoOptions) -> Measured:
    """The stages as the demo starts them, with no evaluation before and after."""
    cores = divide_cores()
    stack = LocalStack(demo.run_dir, placement=cores.rest)
    stack.up()
    try:
        config = prepare.write_run_file(demo, stack)
        prepare.make_topics(demo, stack)
        with Supervisor(demo.run_dir) as supervisor:
            for stage in ("generator", "trainer", "scorer", "producer"):
                placement = {"generator": cores.engine, "trainer": cores.trainer}.get(stage, cores.rest)
                env = {"ROLLSTREAM_TRAIN_WITHOUT_SPREAD": "true"} if stage == "trainer" else {}
                supervisor.start(stage_process(stage, config, env=env, placement=placement))
            return _followed(demo, Run(StageSettings.load(config)), supervisor, CpuSeconds(stack, supervisor))
    finally:
        stack.down()


def _followed(demo: DemoOptions, run: Run, supervisor: Supervisor, cpu: CpuSeconds) -> Measured:
    """Wait until the trainer has made its steps, with the CPU seconds of all processes meanwhile."""
    watch = LoopWatch(run)
    step, deadline = 0, time.monotonic() + _STALLED_SECONDS
    while supervisor.status("trainer").state is not StageState.FINISHED:
        supervisor.tick()
        state = watch.poll()
        if state.step != step:
            step, deadline = state.step, time.monotonic() + _STALLED_SECONDS
            cpu.note(step)
        if time.monotonic() > deadline:
            raise BrokenWorldError(f"no step after step {step} in {_STALLED_SECONDS} s:\n{_ends_of_logs(supervisor)}")
    while watch.poll().step < demo.num_steps:
        if time.monotonic() > deadline:
            raise BrokenWorldError(f"the trainer ended at step {watch.state.step} of {demo.num_steps}")
    measured = watch.surviving_steps[_WARM_UP_STEPS - 1 :]
    watch.close()
    wall = (measured[-1].finished_at - measured[0].finished_at).total_seconds()
    num_steps = len(measured) - 1
    return Measured(
        steps_per_minute=60 * num_steps / wall,
        trained_tokens_per_second=sum(entry.metrics["trained_tokens"] for entry in measured[1:]) / wall,
        cpu_seconds_per_step=cpu.per_step(_WARM_UP_STEPS),
    )


def _ends_of_logs(supervisor: Supervisor) -> str:
    """Shown because the logs are deleted with the bench's directory."""
    return "\n".join(f"{stage.name}: {stage.log.read_text()[-2000:]}" for stage in supervisor.statuses())


def _theirs(demo: DemoOptions, threads: int) -> Measured:
    """TRL in its own environment, on the same cores."""
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigurationError("uv is not on the PATH: TRL runs in an environment that uv makes; install uv")
    task, result = demo.run_dir / "task.json", demo.run_dir / "result.json"
    task.write_text(json.dumps(_task(demo)))
    command = [
        uv, "run", "--no-project", "--isolated", "--with-requirements", str(_HERE / "trl_requirements.txt"),
        "python", str(_HERE / "trl_loop.py"), str(task), str(result),
    ]  # fmt: skip
    log = demo.run_dir / "logs" / "trl.log"
    with log.open("w") as output:
        ended = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            stdout=output, stderr=subprocess.STDOUT, check=False, timeout=_TRL_SECONDS,
        )  # fmt: skip
    if ended.returncode != 0:
        raise BrokenWorldError(f"TRL ended with {ended.returncode}: {log.read_text()[-2000:]}")
    steps = json.loads(result.read_text())["steps"][_WARM_UP_STEPS - 1 :]
    wall = steps[-1]["ended"] - steps[0]["ended"]
    num_steps = len(steps) - 1
    return Measured(
        steps_per_minute=60 * num_steps / wall,
        trained_tokens_per_second=sum(step["trained_tokens"] for step in steps[1:]) / wall,
        cpu_seconds_per_step={"trl": (steps[-1]["cpu_seconds"] - steps[0]["cpu_seconds"]) / num_steps},
    )


def _task(demo: DemoOptions) -> dict[str, Any]:
    num_prompts = demo.num_steps * options.GROUPS_PER_STEP
    return {
        "model": str(demo.run_dir / "model"),
        "prompts": [
            {
                "prompt": [{"role": message.role, "content": message.content} for message in task.messages],
                "reference_answer": task.reference_answer,
            }
            for task in islice(SortDigits().tasks("train", demo.seed), num_prompts)
        ],
        "num_steps": demo.num_steps,
        "groups_per_step": options.GROUPS_PER_STEP,
        "group_size": options.GROUP_SIZE,
        "max_tokens": options.MAX_TOKENS,
        "learning_rate": demo.learning_rate,
        "seed": demo.seed,
    }
