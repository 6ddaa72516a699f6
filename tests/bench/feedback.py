"""`python -m tests.bench feedback`: whether a policy learns from what callers say of its answers, and nothing else."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from rollstream.local.demo.options import LEARNING_RATE, DemoOptions
from rollstream.local.demo.prepare import warm_up
from rollstream.training.learning.settings import LearningSettings
from tests.bench.pairs import count_option, say, scratch, tell

T = TypeVar("T")

GAIN: Final = 0.2
_LEARNING: Final[dict[str, Any]] = {"loss": "dapo", "device": "cpu", "threads": 1}
_ARMS: Final[dict[str, dict[str, Any]]] = {
    "ones": {},
    "learning_rate_0": {"learning_rate": 0.0},
    "groups_of_eight": {},
    "no_baseline": {"advantages": "constant", "baseline": 0.0},
}


@click.command("feedback")
@count_option("--seeds", 3, 1, "Runs of each kind, each with a model, prompts and callers of its own.")
@count_option("--first-seed", 0, 0, "Of these runs the first.")
@count_option("--steps", 200, 1, "Optimizer steps of a run: as many as the demo takes.")
@count_option("--answers", 256, 8, "Judged answers of a step: half of the demo's.")
@click.option("--learning-rate", default=LEARNING_RATE, show_default=True, help="The demo's; some runs have 0.")
def command(seeds: int, first_seed: int, steps: int, answers: int, learning_rate: float) -> None:
    """Right answers to held-out prompts after training on thumbs alone, less those before.

    Callers ask the demo's task and judge 30 % of the answers, +1 or -1, one in ten wrongly. Target: a gain of 0.2 with
    groups of one under each seed. Beside it: learning rate 0, groups of eight with as many judged answers, and thumbs
    as they are, without a baseline. The stages' own code runs in one process, without Kafka.
    """
    # Before torch is imported: two OpenMP threads on a busy machine wait for each other at every token.
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, list[Any]] = {name: [] for name in _ARMS}
    with scratch() as directory:
        for seed in range(first_seed, first_seed + seeds):
            model = warm_up(DemoOptions(run_dir=directory / str(seed), seed=seed))
            for name, changes in _ARMS.items():
                learning = {**_LEARNING, "learning_rate": learning_rate, **changes}
                shape = {"num_steps": steps, "num_answers": answers, "seed": seed}
                shape["group_size"] = 8 if name == "groups_of_eight" else 1
                result = apart(_run, shape, learning, model, directory / f"{seed}-{name}")
                say(f"seed {seed}, {name}: {result['before']:.3f} -> {result['after']:.3f}")
                found[name].append(result)
    figures = {
        "least_gain": round(min(one["after"] - one["before"] for one in found["ones"]), 3),
        "target_gain": GAIN,
        **{name: [[round(one["before"], 3), round(one["after"], 3)] for one in runs] for name, runs in found.items()},
        "num_asked": {name: [one["num_asked"] for one in runs] for name, runs in found.items()},
        "closed": {name: [one["closed"] for one in runs] for name, runs in found.items()},
    }
    settings = {
        "seeds": seeds,
        "first_seed": first_seed,
        "steps": steps,
        "answers": answers,
        "learning_rate": learning_rate,
    }
    tell("feedback", figures, settings)


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """What the function gives in a process of its own: each run finds the machine as the others did."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        return other.submit(function, *arguments).result()


def _run(shape: dict[str, int], learning: dict[str, Any], model: Path, directory: Path) -> dict[str, Any]:
    from tests.bench.feedback_steps import Arm, run_arm

    directory.mkdir()
    found = run_arm(Arm(learning=LearningSettings(**learning), **shape), model, directory)
    return {
        "before": found.before, "after": found.after, "num_asked": found.num_asked, "closed": dict(found.closed),
    }  # fmt: skip
