"""`python -m tests.bench feedback-loop`: the same by the real stages, from a client's call to the weights.

Callers ask a generator's endpoint over HTTP, and say on `feedback` what they think of some answers. The scorer, the
producer of feedback and the trainer do the rest.
"""

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.prepare import untrained_model, warm_up
from rollstream.local.ports import HOST, free_ports
from rollstream.schemas.topics import WEIGHTS
from tests.bench.calling import KEY, NAME, TENANT, CallersOverHttp
from tests.bench.feedback import GAIN, apart
from tests.bench.pairs import count_option, say, scratch, tell
from tests.bench.whole_loop import WholeLoop, a_whole_loop

_ONES_PER_GROUP: Final = 8
_STALLED_SECONDS: Final = 240.0


@click.command("feedback-loop")
@count_option("--seeds", 1, 1, "Runs, each with a model, prompts and callers of its own.")
@count_option("--steps", 60, 1, "Optimizer steps of a run.")
@count_option("--answers", 128, 8, "Judged answers of a step.")
@click.option("--learning-rate", default=5e-5, show_default=True, help="At 0 nothing may be learned.")
def command(seeds: int, steps: int, answers: int, learning_rate: float) -> None:
    """Right answers to held-out prompts after training on thumbs alone, less those before. Target: 0.2.

    Callers ask the demo's task over HTTP and judge 30 % of the answers, +1 or -1, one in ten wrongly.
    """
    # Before torch is imported: two OpenMP threads on a busy machine wait for each other at every token.
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = []
    for seed in range(seeds):
        with scratch() as directory:
            model = warm_up(DemoOptions(run_dir=directory, seed=seed))
            settings = _settings(directory, model, answers=answers, learning_rate=learning_rate)
            runs.append(_run(directory, model, settings, seed=seed, steps=steps))
        say(f"seed {seed}: {runs[-1]['before']:.3f} -> {runs[-1]['after']:.3f}")
    gains = [run["after"] - run["before"] for run in runs]
    figures = {"least_gain": round(min(gains), 3), "target_gain": GAIN, "runs": runs}
    tell("feedback-loop", figures, {"steps": steps, "answers": answers, "learning_rate": learning_rate})


def _run(directory: Path, model: Path, settings: dict[str, Any], *, seed: int, steps: int) -> dict[str, Any]:
    port = settings["generator"]["serve"]["port"]
    num_answers = settings["groups_per_step"] * _ONES_PER_GROUP
    with a_whole_loop(directory, settings) as loop:
        callers = CallersOverHttp(loop.run, f"http://{HOST}:{port}", seed=seed, num_answers=num_answers)
        callers.start()
        try:
            loop.until(lambda: _is_at(loop, callers, steps), f"step {steps}", _STALLED_SECONDS)
        finally:
            callers.stop()
        newest = [*loop.run.read(WEIGHTS)][-1]
        entries = loop.watch.surviving_steps
    before, after = (apart(_right_ratio, path, seed) for path in (model, Path(urlsplit(newest.uri).path)))
    return {
        "seed": seed,
        "before": round(before, 3),
        "after": round(after, 3),
        "answered": callers.num_answered,
        "judged": callers.num_judged,
        "refused": callers.num_refused,
        "served_policy_lag_mean": [round(entry.metrics["served_policy_lag_mean"], 1) for entry in entries][-1],
        "trained": sum(len(entry.trained) for entry in entries),
        "seconds": round((entries[-1].finished_at - entries[0].started_at).total_seconds()),
    }


def _is_at(loop: WholeLoop, callers: CallersOverHttp, steps: int) -> bool:
    callers.step = loop.watch.state.step
    return callers.step >= steps


def _right_ratio(model: Path, seed: int) -> float:
    from tests.bench.feedback_steps import right_ratio_of

    return right_ratio_of(model, seed)


def _settings(directory: Path, model: Path, *, answers: int, learning_rate: float) -> dict[str, Any]:
    (port,) = free_ports(1)
    key = {"key": KEY, "tenant": TENANT, "may_train": True, "sampling": "plain"}
    return {
        "groups_per_step": answers // _ONES_PER_GROUP,
        "ones_per_group": _ONES_PER_GROUP,
        "max_policy_lag": 2,
        "producer": {
            "source": "feedback",
            "feedback": {"settle_seconds": 0.5, "store": str(directory / "feedback.sqlite")},
        },
        "generator": {
            "engine": {"kind": "vllm", "model_path": str(untrained_model()), "max_model_len": 32, "max_num_seqs": 64},
            "serve": {"enabled": True, "port": port, "keys": {NAME: key}, "spool": str(directory / "spool")},
        },
        "scorer": {"session_timeout_seconds": 10, "batch_deadline_seconds": 8, "load_deadline_seconds": 8},
        "trainer": {
            "model_path": str(model.resolve()),
            "checkpoints": str(directory / "checkpoints"),
            "learning": {"learning_rate": learning_rate, "threads": 1, "loss": "dapo"},
        },
    }
