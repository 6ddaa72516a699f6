"""`python -m tests.bench tool-learning`: whether a policy learns a task that it can't do without calling a tool."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
import tomli_w

from rollstream.client.evaluate import evaluate
from rollstream.client.evaluation import EvaluationRequest
from rollstream.local.demo import options
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.prompt import AgentChoice
from tests.bench.pairs import count_option, say, scratch, tell
from tests.bench.tool_task import SCHEMA, hidden_digits_server
from tests.bench.whole_loop import WholeLoop, a_whole_loop

GAIN: Final = 0.3
_TASK: Final = "tests.bench.tool_task"
_ENVIRONMENTS: Final = {
    "hidden_digits": {"path": f"{_TASK}.HiddenDigits"},
    "hidden_digits_shown": {"path": f"{_TASK}.HiddenDigitsShown"},
}
_STALLED_SECONDS: Final = 240.0


@click.command("tool-learning")
@count_option("--seeds", 3, 1, "Runs, each with a model and tasks of its own.")
@count_option("--first-seed", 0, 0, "Of these runs the first.")
@count_option("--steps", 200, 1, "Optimizer steps of a run.")
@count_option("--groups", 16, 1, "Groups of a step, of 16 samples each.")
@count_option("--prompts", 256, 1, "Held-out prompts, each answered greedily before and after.")
def command(seeds: int, first_seed: int, steps: int, groups: int, prompts: int) -> None:
    """Right answers to held-out prompts after training, less those before. Target: a gain of 0.3 under each seed.

    The whole stack: Kafka, a generator with vLLM, a server of tools over HTTP, the scorer, the trainer.
    """
    found = []
    with scratch() as directory, hidden_digits_server() as url:
        for seed in range(first_seed, first_seed + seeds):
            (run_dir := directory / str(seed)).mkdir()
            before, after = _run(run_dir, url, seed=seed, steps=steps, groups=groups, prompts=prompts)
            say(f"seed {seed}: {before:.3f} -> {after:.3f}")
            found.append([round(before, 3), round(after, 3)])
            shutil.rmtree(run_dir)
    figures = {
        "least_gain": round(min(after - before for before, after in found), 3),
        "target_gain": GAIN,
        "runs": found,
    }
    tell("tool-learning", figures, {"seeds": seeds, "first_seed": first_seed, "steps": steps, "groups": groups})


def _run(run_dir: Path, url: str, *, seed: int, steps: int, groups: int, prompts: int) -> tuple[float, float]:
    model = run_dir / "model"
    _warm_up(run_dir, model, seed)
    settings = _settings(run_dir, model, url, seed=seed, steps=steps, groups=groups)
    with a_whole_loop(run_dir, settings, poses=False) as loop:
        loop.until(lambda: loop.watch.state.version_applied is not None, "version 0", _STALLED_SECONDS)
        # Else a newer version may come before all of them are answered.
        before = _share(loop, 0, prompts)
        loop.start_producer()
        loop.until(lambda: loop.watch.state.step >= steps, f"step {steps}", _STALLED_SECONDS)
        newest = loop.watch.state.version_published or 0
        loop.until(lambda: loop.watch.state.version_applied == newest, f"version {newest}", _STALLED_SECONDS)
        return before, _share(loop, newest, prompts)


def _warm_up(run_dir: Path, model: Path, seed: int) -> None:
    config = run_dir / "warm-up.toml"
    config.write_text(tomli_w.dumps({"run": "warm-up", "environments": _ENVIRONMENTS}))
    command = [
        sys.executable, "-m", "rollstream.cli.main", "sft", "--tiny-model", "--environment", "hidden_digits_shown",
        "--until-accuracy", "0.45", "--seed", str(seed), "--threads", "1", "--config", str(config),
        "--output", str(model),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=sys.stderr)


def _settings(run_dir: Path, model: Path, url: str, *, seed: int, steps: int, groups: int) -> dict[str, Any]:
    """Those of the demo, with an agent and its tools."""
    return {
        "groups_per_step": groups,
        "max_policy_lag": options.MAX_POLICY_LAG,
        "environments": _ENVIRONMENTS,
        "agents": {"hidden": {"path": f"{_TASK}.HiddenDigitsAgent"}},
        "tools": {
            "hidden": {"kind": "http", "url": url, "schemas": [SCHEMA], "replayable": ["digits"], "reopens": True}
        },
        "producer": {
            "environment": "hidden_digits",
            "seed": seed,
            "group_size": options.GROUP_SIZE,
            "agent": {"name": "hidden"},
        },
        "generator": {
            "engine": {"kind": "vllm", "model_path": str(model), "max_model_len": 64, "max_num_seqs": 256},
        },
        "scorer": {"session_timeout_seconds": 10, "batch_deadline_seconds": 8, "load_deadline_seconds": 8},
        "trainer": {
            "model_path": str(model),
            "checkpoints": str(run_dir / "checkpoints"),
            "num_steps": steps,
            "checkpoint_every": options.CHECKPOINT_EVERY,
            # Else nothing says that an answer should end: with them masked a third was cut off after 100 steps.
            "train_truncated": True,
            "learning": {
                "learning_rate": options.LEARNING_RATE, "beta2": 0.99, "weight_decay": 0.0, "warmup_steps": 10,
                "minibatches": 1, "old": "behavior", "threads": 1, "scale_advantages": "group", "seed": seed,
            },
        },
    }  # fmt: skip


def _share(loop: WholeLoop, version: int, prompts: int) -> float:
    request = EvaluationRequest(
        environment="hidden_digits",
        weight_version=version,
        environments={name: Declaration.model_validate(one) for name, one in _ENVIRONMENTS.items()},
        agent=AgentChoice(name="hidden"),
        num_prompts=prompts,
    )
    report = evaluate(loop.run, request)
    if report.mean_reward is None or report.num_completed < prompts:
        raise BrokenWorldError(f"version {version} answered {report.num_completed} of {prompts}: {report.failures}")
    return report.mean_reward
