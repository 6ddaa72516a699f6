"""`python -m tests.bench library`: the training library's loop against a plain PyTorch loop, and whether it learns."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from typing import Any, Final

import click

from tests.bench import trainer, trainer_wait
from tests.bench.model_sizes import MODEL_SIZES
from tests.bench.pairs import compared, count_option, in_turn, say, scratch, tell

_TARGET: Final = 0.95
_GAIN: Final = 0.2


@click.command("library")
@count_option("--pairs", 5, 1, "Runs of both sides, in turn; medians count.")
@click.option("--model", default="10m", show_default=True, type=click.Choice(sorted(MODEL_SIZES)), help="Which model.")
@count_option("--steps", 20, 5, "Steps of a run.")
@count_option("--seeds", 3, 0, "Runs of the demo's task, whose reward should rise by 0.2.")
@count_option("--learning-steps", 120, 10, "Steps of each of these.")
@trainer_wait.shape_options
def command(pairs: int, model: str, seeds: int, learning_steps: int, **shape: int) -> None:
    """Trained tokens a second of `run_rl_training` on rollouts in memory ÷ those of a plain PyTorch loop.

    Target: 0.95. Beside it the demo's task, warm-up included, by the library and the engine on transformers alone.
    """
    sides = {"library": partial(_apart, _ours, shape, model), "bare": partial(_apart, _bare, shape, model)}
    found = in_turn(sides, pairs, lambda pair: f"{pair['library'] / pair['bare']:.3f}")
    rises = [_apart(_rise, seed, learning_steps) for seed in range(seeds)]
    figures = {
        **compared([pair["library"] / pair["bare"] for pair in found]),
        "target": _TARGET,
        "library_tokens_per_second": round(median(pair["library"] for pair in found)),
        "bare_tokens_per_second": round(median(pair["bare"] for pair in found)),
        "rewards": [[round(reward, 3) for reward in rise] for rise in rises],
        "least_gain": round(min((last - first for first, last in rises), default=0.0), 3),
        "target_gain": _GAIN,
    }
    tell("library", figures, {**shape, "model": model, "pairs": pairs, "learning_steps": learning_steps})


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        return other.submit(function, *arguments).result()


def _bare(shape: dict[str, int], model: str) -> float:
    return trainer.bare_tokens_per_second(shape, model)


def _ours(shape: dict[str, int], model: str) -> float:
    from tests.harness.library_runs import tokens_per_second

    return tokens_per_second(
        groups=shape["groups_per_step"],
        group_size=shape["group_size"],
        prompt_tokens=trainer.PROMPT_TOKENS,
        tokens=shape["tokens"],
        steps=(trainer.WARM_UP_STEPS, shape["steps"]),
        **MODEL_SIZES[model],
    )


def _rise(seed: int, num_steps: int) -> tuple[float, float]:
    """Mean reward of the first and of the last steps of the demo's task."""
    from tests.harness.library_runs import demo_rewards

    with scratch() as directory:
        first, last = demo_rewards(directory, seed, num_steps)
    say(f"seed {seed}: reward {first:.3f} -> {last:.3f}")
    return first, last
