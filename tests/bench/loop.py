"""`python -m tests.bench loop`: the whole loop on this machine against TRL's GRPOTrainer, one after the other.

Both sides get the same cores, model, prompts, group size, loss, minibatches and dtype, and both train on groups without
spread. Their steps are not the same, though: ours train on samples that are up to max_policy_lag steps old, TRL's on
new ones. So the rewards of both sides are printed beside the speed. TRL generates with transformers, ours with vLLM:
where lengths vary, the gain is vLLM's continuous batching as much as the loop.

TRL runs in an environment of its own that uv makes (`trl_requirements.txt`): its dependencies are not ours. Its vLLM
mode is left out: with this vLLM it ends at its first handing over of weights. So is its AsyncGRPO: it hands weights
over by NCCL, which needs a GPU on both sides.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

import click

from rollstream.local.demo.options import LEARNING_RATE, DemoOptions
from tests.bench.loop_shapes import Shape, shape_of
from tests.bench.loop_sides import WARM_UP_STEPS, Measured, TrlOptions, ours, theirs, trl_requirements
from tests.bench.pairs import a_pair, compared, count_option, say, scratch, tell

_CHAIN_LEARNING_RATE: Final = 1e-6
"""Where the model's answers are set beforehand, they shall stay as they are."""


@click.command("loop")
@click.option(
    "--shape",
    "shape_name",
    default="demo",
    show_default=True,
    type=click.Choice(["demo", "uniform", "varied"]),
    help="demo: its model and task; uniform: answers that all have --tokens tokens; varied: up to 400, log-normal.",
)
@count_option("--tokens", 64, 1, "Of an answer of `uniform`.", most=4096)
@click.option("--seeds", default="1,2,3", show_default=True, help="One pair of runs for each of these seeds.")
@click.option("--steps", type=click.IntRange(min=5), help="Measured steps of a run; default: 60, 20 or 10 by shape.")
@click.option("--alone", is_flag=True, help="Without TRL: only what our processes take.")
@click.option(
    "--trl-threads",
    default=len(os.sched_getaffinity(0)),
    show_default="one a core",
    type=click.IntRange(min=1),
    help="Threads of torch in TRL's process.",
)
@click.option("--trl-continuous-batching", is_flag=True, help="TRL generates with continuous batching.")
def command(  # one parameter an option
    shape_name: str,
    tokens: int,
    seeds: str,
    steps: int | None,
    alone: bool,
    trl_threads: int,
    trl_continuous_batching: bool,
) -> None:
    """Speed of the whole loop with Kafka ÷ that of TRL's GRPOTrainer, with the same model and prompts.

    Targets: 1.0 in optimizer steps a minute (demo), 0.9 (uniform) and 2.5 (varied) in trained tokens a second. The
    first time uv fetches TRL and PyTorch for it.
    """
    shape = shape_of(shape_name, tokens)
    trl = None if alone else TrlOptions(threads=trl_threads, continuous_batching=trl_continuous_batching)
    found = []
    for number, seed in enumerate(_numbers(seeds)):
        found.append(_pair(shape, seed, steps or shape.steps, trl, number))
        if trl is not None:
            say(f"seed {seed}: {_ratio(found[-1], shape.counts):.3f}")
    settings = {
        "shape": {name: value for name, value in asdict(shape).items() if name != "chain"},
        "seeds": seeds,
        "steps": steps or shape.steps,
        "warm_up_steps": WARM_UP_STEPS,
        "dtype": "float32",
        "trl": trl and {**asdict(trl), "requirements": trl_requirements().read_text().split()},
    }
    tell("loop", _report(found, shape), settings)


def _numbers(seeds: str) -> list[int]:
    try:
        return [int(seed) for seed in seeds.split(",")]
    except ValueError as error:
        raise click.BadParameter(
            f"{seeds!r}: name whole numbers with commas between them", param_hint="--seeds"
        ) from error


def _pair(shape: Shape, seed: int, steps: int, trl: TrlOptions | None, number: int) -> dict[str, Measured]:
    with scratch() as directory:
        demo = DemoOptions(
            run_dir=directory / "loop",
            seed=seed,
            num_steps=steps + WARM_UP_STEPS,
            learning_rate=LEARNING_RATE if shape.chain is None else _CHAIN_LEARNING_RATE,
        )
        shape.write_model(demo)
        sides: dict[str, Callable[[], Measured]] = {"rollstream": lambda: ours(demo, shape)}
        if trl is not None:
            sides["trl"] = lambda: theirs(demo, shape, trl)
        return a_pair(sides, number)


def _ratio(pair: dict[str, Measured], of: str) -> float:
    return float(getattr(pair["rollstream"], of) / getattr(pair["trl"], of))


def _report(found: Sequence[dict[str, Measured]], shape: Shape) -> dict[str, Any]:
    report: dict[str, Any] = {"target": shape.target, "counts": shape.counts}
    if "trl" in found[0]:
        report |= compared([_ratio(pair, shape.counts) for pair in found])
        for of in ("steps_per_minute", "trained_tokens_per_second"):
            report[f"ratios_of_{of}"] = [round(_ratio(pair, of), 3) for pair in found]
    return report | {side: _figures([pair[side] for pair in found]) for side in found[0]}


def _figures(runs: Sequence[Measured]) -> dict[str, Any]:
    def by_process(of: str, digits: int) -> dict[str, float]:
        names = sorted({name for run in runs for name in getattr(run, of)})
        return {name: round(median(getattr(run, of).get(name, 0.0) for run in runs), digits) for name in names}

    return {
        "steps_per_minute": [round(run.steps_per_minute, 1) for run in runs],
        "trained_tokens_per_second": [round(run.trained_tokens_per_second) for run in runs],
        "tokens_per_step": [round(run.tokens_per_step) for run in runs],
        "reward_of_first_and_last_quarter": [[round(reward, 3) for reward in run.quarters] for run in runs],
        "policy_lag_mean": [round(run.policy_lag, 2) for run in runs],
        "cpu_seconds_per_step": by_process("cpu_seconds_per_step", 3),
        "cpu_microseconds_per_token": by_process("cpu_microseconds_per_token", 1),
    }
