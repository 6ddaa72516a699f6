"""Runs the loop of `python -m tests.bench long-tail`, all stages as processes, and reads what became of its answers."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.topics import PROMPTS, SCORED
from tests.bench.length_bias import TRAINED, Answers, answers_of
from tests.bench.tasks import LONG_PATH
from tests.bench.whole_loop import WholeLoop, a_whole_loop

MAX_TOKENS: Final = 4096
MEDIAN_TOKENS: Final = 300
SIGMAS: Final = {"sample": (0.6, 0.8), "prompt": (0.99, 0.14)}
"""Whether length belongs more to the sample or to the prompt → sigma of prompts, and of the samples of one prompt.

Together 1.0: the mean is 495 tokens, and 0.45 % of the answers are cut at MAX_TOKENS. By prompt, the answers to some
prompts are ten times as long as others, all of them: before one has come they are too old.
"""
WARM_UP_STEPS: Final = 5
"""All groups of the first steps start at the same moment."""
_MODEL_TOKENS: Final = MAX_TOKENS + 104
_PAUSE_SECONDS: Final = 0.1
"""Tokens come in pauses of about this length: a pause for each would keep the generator's process busy."""
_STALLED_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailShape:
    """Size and speed of the loop. `concurrency`: samples that the engine runs side by side."""

    steps: int
    groups_per_step: int
    group_size: int
    concurrency: int
    max_policy_lag: int
    seed: int
    step_seconds: float
    wait_for_late_seconds: float
    length_by: str
    """A key of SIGMAS."""

    @property
    def sigmas(self) -> tuple[float, float]:
        """Of prompts, and of the samples of one prompt."""
        return SIGMAS[self.length_by]

    @property
    def token_seconds(self) -> float:
        """Time of a token with which the engine needs `step_seconds` for the samples of a step."""
        mean_tokens = MEDIAN_TOKENS * math.exp(sum(sigma**2 for sigma in self.sigmas) / 2)
        return self.step_seconds * self.concurrency / (self.groups_per_step * self.group_size * mean_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRun:
    """What a run left: the answers that count, the steps meanwhile, and the CPU seconds of a step by process."""

    found: Answers
    steps: tuple[LedgerEntry, ...]
    cpu_seconds_per_step: dict[str, float]


def run_tail(directory: Path, shape: TailShape) -> TailRun:
    """Start everything in `directory`, run until all groups that count are closed, and stop everything."""
    write_tiny_model(
        directory / "model", seed=shape.seed, hidden=32, layers=1, heads=2, ffn=64, max_length=_MODEL_TOKENS
    )
    last_step = WARM_UP_STEPS + shape.steps
    with a_whole_loop(directory, _settings(directory, shape)) as loop:
        watch = loop.watch
        loop.until(lambda: watch.state.step >= last_step, f"step {last_step}", _STALLED_SECONDS)
        steps = watch.surviving_steps
        begin, end = steps[WARM_UP_STEPS - 1].finished_at, steps[last_step - 1].finished_at
        counted = {one.group_id for one in loop.run.read(PROMPTS) if begin < one.submitted_at <= end}
        loop.until(lambda: counted <= watch.closed.keys(), "the last groups that count", _STALLED_SECONDS)
        return TailRun(
            found=_answers(loop, counted),
            steps=tuple(steps[WARM_UP_STEPS:last_step]),
            cpu_seconds_per_step=loop.cpu_seconds_per_step(WARM_UP_STEPS),
        )


def _answers(loop: WholeLoop, counted: set[str]) -> Answers:
    closed = loop.watch.closed
    answers: dict[str, tuple[str, int]] = {}
    for scored in loop.run.read(SCORED):
        rollout = scored.rollout
        # Of two attempts at a sample the first one, as the trainer takes it.
        answers.setdefault(rollout.rollout_id, (rollout.group_id, rollout.num_completion_tokens))
    return answers_of(list(answers.values()), {group: closed[group].reason or TRAINED for group in counted})


def _settings(directory: Path, shape: TailShape) -> dict[str, Any]:
    return {
        "groups_per_step": shape.groups_per_step,
        "max_policy_lag": shape.max_policy_lag,
        "environments": {"long_answers": {"path": LONG_PATH}},
        "producer": {
            "environment": "long_answers",
            "seed": shape.seed,
            "group_size": shape.group_size,
            # The seed makes the lengths the same in every run.
            "sampling": {"temperature": 1.0, "max_tokens": MAX_TOKENS, "seed": shape.seed},
        },
        "generator": _generator_settings(directory, shape),
        "trainer": {
            "model_path": _model(directory),
            "checkpoints": str(directory.resolve() / "checkpoints"),
            "learning": {"learning_rate": 1e-6, "threads": 1},
            "wait_for_late_seconds": shape.wait_for_late_seconds,
        },
    }


def _generator_settings(directory: Path, shape: TailShape) -> dict[str, Any]:
    of_prompts, of_samples = shape.sigmas
    scripted = {
        "token_seconds": shape.token_seconds,
        "tokens_at_once": max(1, round(_PAUSE_SECONDS / shape.token_seconds)),
        "answer_tokens_median": MEDIAN_TOKENS,
        "answer_tokens_sigma_of_prompts": of_prompts,
        "answer_tokens_sigma_of_samples": of_samples,
    }
    return {
        "engine": {
            "kind": "scripted",
            "model_path": _model(directory),
            "max_model_len": _MODEL_TOKENS,
            "max_num_seqs": shape.concurrency,
            "scripted": scripted,
        },
    }


def _model(directory: Path) -> str:
    return str(directory.resolve() / "model")
