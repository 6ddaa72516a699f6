"""`python -m tests.bench long-tail`: whether dropping late rollouts starves long answers, and so hard prompts.

A group whose oldest token is more than max_policy_lag steps old is dropped, and a long answer takes the time of many
steps. So the answers that are trained may be shorter than those that are generated. The whole loop runs on the real
bus. Its engine samples nothing: it takes the time of answers whose lengths are log-normal, and it is the bottleneck.
It runs twice: length may belong to the sample, then one sample of a group tells the group's age before the last one has
ended; or to the prompt, then all samples of a group are long, and none comes in time to tell.

Which groups count: those that were submitted between the end of the warm-up and the last measured step. The loop goes
on unchanged until all of them are closed, and is stopped then. If what is open at the end were left out, the end itself
would cut off the longest.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import click
import numpy as np

from tests.bench import long_tail_loop
from tests.bench.length_bias import draw, figures, too_old_share_of_tokens
from tests.bench.long_tail_loop import SIGMAS, TailRun, TailShape, run_tail
from tests.bench.pairs import count_option, scratch, tell

_TARGET_SHARE: Final = 0.01
_TARGET_DISTANCE: Final = 0.02
# Samples come one by one: the trainer counts as assembling what it waits for a record that comes within a poll.
_PHASES: Final = ("waiting", "assembling", "waiting_for_late", "packing", "forward_backward", "optimizer", "publishing")


@click.command("long-tail")
@count_option("--steps", 30, 2, "Steps that are measured.")
@count_option("--groups-per-step", 8, 1)
@count_option("--group-size", 8, 2)
@click.option(
    "--concurrency",
    default=None,
    show_default="those of a step",
    type=click.IntRange(min=1),
    help="Samples that the engine runs side by side.",
)
@count_option("--max-policy-lag", 4, 0)
@count_option("--seed", 0, 0, "Of prompts and lengths.")
@click.option(
    "--step-seconds",
    default=1.5,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Time that the engine takes for the samples of a step; it must be more than the trainer takes.",
)
@click.option(
    "--wait-for-late",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds for which the trainer holds a step back for groups that it would make too old; 0: never.",
)
@click.option(
    "--length-by",
    default="both",
    show_default=True,
    type=click.Choice([*SIGMAS, "both"]),
    help="Whether the lengths of a prompt's answers differ, or those of prompts.",
)
@click.option(
    "--plot",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the lengths into files of this name, with -sample and -prompt before its ending.",
)
def command(concurrency: int | None, wait_for_late: float, length_by: str, plot: Path | None, **sizes: Any) -> None:
    """Share of the generated tokens that are dropped for their lag, and how far the trained lengths are from all.

    Targets, of each division of lengths: 0.01, and a Kolmogorov-Smirnov distance of 0.02.
    """
    found = {}
    for division in SIGMAS if length_by == "both" else (length_by,):
        shape = TailShape(
            **sizes,
            concurrency=concurrency or sizes["groups_per_step"] * sizes["group_size"],
            wait_for_late_seconds=wait_for_late,
            length_by=division,
        )
        found[division] = _measured(shape, plot)
    tell("long-tail", report(found))


def _measured(shape: TailShape, plot: Path | None) -> dict[str, Any]:
    with scratch() as directory:
        tail = run_tail(directory / "long-tail", shape)
    if plot is not None:
        draw(tail.found, plot.with_stem(f"{plot.stem}-{shape.length_by}"))
    return division_report(tail, shape)


def report(divisions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The worst figures of all divisions beside the targets, then each division."""
    return {
        "ratio": max(one["ratio"] for one in divisions.values()),
        "target": _TARGET_SHARE,
        "ks_distance": max(one["ks_distance"] for one in divisions.values()),
        "target_ks_distance": _TARGET_DISTANCE,
        "length_by": divisions,
    }


def division_report(tail: TailRun, shape: TailShape) -> dict[str, Any]:
    """The figures of one run."""
    step_seconds = _mean(tail, "step_seconds")
    sampling_seconds = tail.found.lengths * shape.token_seconds
    return {
        "ratio": round(too_old_share_of_tokens(tail.found), 4),
        **figures(tail.found),
        "num_steps": len(tail.steps),
        "step_seconds": round(step_seconds, 3),
        "trainer_seconds_per_step": {phase: round(_mean(tail, f"{phase}_seconds"), 3) for phase in _PHASES},
        "sampling_seconds_in_steps": {
            "mean": round(float(sampling_seconds.mean()) / step_seconds, 2),
            "p99": round(float(np.quantile(sampling_seconds, 0.99)) / step_seconds, 2),
            "max": round(float(sampling_seconds.max()) / step_seconds, 2),
        },
        "policy_lag": {
            "mean": round(_mean(tail, "policy_lag_mean"), 2),
            "max": max(step.metrics["policy_lag_max"] for step in tail.steps),
        },
        "cpu_seconds_per_step": {name: round(seconds, 3) for name, seconds in tail.cpu_seconds_per_step.items()},
        "settings": _settings(shape),
    }


def _mean(tail: TailRun, metric: str) -> float:
    return fmean(step.metrics[metric] for step in tail.steps)


def _settings(shape: TailShape) -> dict[str, Any]:
    return {
        **asdict(shape),
        "warm_up_steps": long_tail_loop.WARM_UP_STEPS,
        "token_seconds": shape.token_seconds,
        "median_tokens": long_tail_loop.MEDIAN_TOKENS,
        "sigmas": {"of_prompts": shape.sigmas[0], "of_samples": shape.sigmas[1]},
        "max_tokens": long_tail_loop.MAX_TOKENS,
    }
