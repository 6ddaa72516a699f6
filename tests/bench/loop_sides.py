"""The two sides of `python -m tests.bench loop`: our stages with Kafka, and TRL's GRPOTrainer, on the same cores."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rollstream.environments.protocol import Task
from rollstream.environments.sort_digits import SortDigits
from rollstream.local.demo.options import DemoOptions
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from tests.bench.loop_shapes import Shape
from tests.bench.tasks import CoinTask
from tests.bench.whole_loop import a_whole_loop

WARM_UP_STEPS: Final = 5
_STALLED_SECONDS: Final = 300.0
_TRL_SECONDS: Final = 3600.0
_TRL_SAMPLES_PER_BACKWARD: Final = 128
"""Its micro-batch where answers are long: 512 samples at once do not fit into the memory. Short ones go at once."""
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One side of a pair, without its warm-up."""

    steps_per_minute: float
    trained_tokens_per_second: float
    cpu_seconds_per_step: dict[str, float]
    """By process."""
    rewards: tuple[float, ...]
    """Mean reward of each step, over all of its samples."""
    policy_lag: float
    """Mean of the samples that were trained, in optimizer steps."""

    @property
    def quarters(self) -> tuple[float, float]:
        """Mean reward of the first and of the last quarter of the steps."""
        length = max(1, len(self.rewards) // 4)
        return fmean(self.rewards[:length]), fmean(self.rewards[-length:])

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step trained on."""
        return 60 * self.trained_tokens_per_second / self.steps_per_minute

    @property
    def cpu_microseconds_per_token(self) -> dict[str, float]:
        """By process, for each token that was trained on."""
        return {name: 1e6 * seconds / self.tokens_per_step for name, seconds in self.cpu_seconds_per_step.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlOptions:
    """How TRL runs."""

    threads: int
    continuous_batching: bool


def ours(demo: DemoOptions, shape: Shape) -> Measured:
    """The stages as the demo starts them, with no evaluation before and after."""
    with a_whole_loop(demo.run_dir, shape.stage_settings(demo)) as loop:
        loop.until(lambda: loop.watch.state.step >= demo.num_steps, f"step {demo.num_steps}", _STALLED_SECONDS)
        measured = loop.watch.surviving_steps[WARM_UP_STEPS - 1 :]
        cpu_seconds = loop.cpu_seconds_per_step(WARM_UP_STEPS)
    wall = (measured[-1].finished_at - measured[0].finished_at).total_seconds()
    num_steps = len(measured) - 1
    return Measured(
        steps_per_minute=60 * num_steps / wall,
        trained_tokens_per_second=sum(entry.metrics["trained_tokens"] for entry in measured[1:]) / wall,
        cpu_seconds_per_step=cpu_seconds,
        rewards=tuple(entry.metrics["reward_mean"] for entry in measured[1:]),
        policy_lag=fmean(entry.metrics["policy_lag_mean"] for entry in measured[1:]),
    )


def theirs(demo: DemoOptions, shape: Shape, trl: TrlOptions) -> Measured:
    """TRL in its own environment, on the same cores."""
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigurationError("uv is not on the PATH: TRL runs in an environment that uv makes; install uv")
    task, result = demo.run_dir / "task.json", demo.run_dir / "result.json"
    task.write_text(json.dumps(_task(demo, shape, trl)))
    command = [
        uv, "run", "--no-project", "--isolated", "--with-requirements", str(trl_requirements()),
        "python", str(_HERE / "trl_loop.py"), str(task), str(result),
    ]  # fmt: skip
    log = demo.run_dir / "logs" / "trl.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        ended = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": str(trl.threads), "HF_HUB_OFFLINE": "1"},
            stdout=output, stderr=subprocess.STDOUT, check=False, timeout=_TRL_SECONDS,
        )  # fmt: skip
    if ended.returncode != 0:
        raise BrokenWorldError(f"TRL ended with {ended.returncode}: {log.read_text()[-2000:]}")
    return _read_theirs(json.loads(result.read_text()))


def _read_theirs(result: dict[str, Any]) -> Measured:
    """What `trl_loop.py` wrote; it generates with the newest weights alone, so its lag is 0."""
    steps = result["steps"][WARM_UP_STEPS - 1 :]
    wall = steps[-1]["ended"] - steps[0]["ended"]
    num_steps = len(steps) - 1
    return Measured(
        steps_per_minute=60 * num_steps / wall,
        trained_tokens_per_second=sum(step["trained_tokens"] for step in steps[1:]) / wall,
        cpu_seconds_per_step={"trl": (steps[-1]["cpu_seconds"] - steps[0]["cpu_seconds"]) / num_steps},
        rewards=tuple(result["rewards"][WARM_UP_STEPS:]),
        policy_lag=0.0,
    )


def trl_requirements() -> Path:
    """What TRL's environment holds."""
    return _HERE / "trl_requirements.txt"


def _task(demo: DemoOptions, shape: Shape, trl: TrlOptions) -> dict[str, Any]:
    environment = CoinTask(shape.starts) if shape.chain is not None else SortDigits()
    tasks = islice(environment.tasks("train", demo.seed), demo.num_steps * shape.groups_per_step)
    samples = shape.groups_per_step * shape.group_size
    return {
        "model": str(demo.run_dir / "model"),
        "prompts": [_prompt(task) for task in tasks],
        "num_steps": demo.num_steps,
        "samples_per_step": samples,
        "samples_per_backward": samples if shape.chain is None else min(samples, _TRL_SAMPLES_PER_BACKWARD),
        "group_size": shape.group_size,
        "max_tokens": shape.max_tokens,
        "reward": "exact_match" if shape.chain is None else "parity",
        "train_truncated": shape.chain is not None,
        "continuous_batching": trl.continuous_batching,
        "learning_rate": demo.learning_rate,
        "seed": demo.seed,
    }


def _prompt(task: Task) -> dict[str, Any]:
    return {
        "prompt": [{"role": message.role, "content": message.content} for message in task.messages],
        "reference_answer": task.reference_answer or "",
    }
