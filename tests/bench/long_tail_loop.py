"""Runs the loop of `python -m tests.bench long-tail`, all stages as processes, and reads what became of its answers."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import tomli_w

from rollstream.bus.run import Run
from rollstream.local.cores import divide_cores
from rollstream.local.demo.watch import LoopWatch
from rollstream.local.keep_alive import StageState
from rollstream.local.run_file import shared_settings
from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import Supervisor, stage_process
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.files import write_private
from rollstream.process.settings.base import RUN_FILE, StageSettings
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.topics import PROMPTS, SCORED
from tests.bench.cpu_seconds import CpuSeconds
from tests.bench.length_bias import TRAINED, Outcomes, outcomes

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
_GOING_ON: Final = (StageState.RUNNING, StageState.WAITING)


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

    found: Outcomes
    steps: tuple[LedgerEntry, ...]
    cpu_seconds_per_step: dict[str, float]


def run_tail(directory: Path, shape: TailShape) -> TailRun:
    """Start everything in `directory`, run until all groups that count are closed, and stop everything."""
    cores = divide_cores()
    stack = LocalStack(directory, placement=cores.rest)
    stack.up()
    try:
        write_tiny_model(
            directory / "model", seed=shape.seed, hidden=32, layers=1, heads=2, ffn=64, max_length=_MODEL_TOKENS
        )
        config = directory / RUN_FILE
        write_private(config, tomli_w.dumps(_settings(directory, stack, shape)))
        run = Run(StageSettings.load(config))
        run.admin().create_topics(run.name, partitions=2)
        with Supervisor(directory) as supervisor:
            for stage in ("generator", "trainer", "scorer", "producer"):
                supervisor.start(stage_process(stage, config, placement=cores.placement_of(stage)))
            return _Following(run, shape, supervisor, CpuSeconds(stack, supervisor)).to_the_end()
    finally:
        stack.down()


def _settings(directory: Path, stack: LocalStack, shape: TailShape) -> dict[str, Any]:
    return {
        **shared_settings(directory, stack),
        "groups_per_step": shape.groups_per_step,
        "max_policy_lag": shape.max_policy_lag,
        "environments": {"long_answers": {"path": "tests.bench.long_answers.LongAnswers"}},
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


class _Following:
    """Follows a run until every group that counts is closed."""

    def __init__(self, run: Run, shape: TailShape, supervisor: Supervisor, cpu: CpuSeconds) -> None:
        self._run = run
        self._shape = shape
        self._supervisor = supervisor
        self._cpu = cpu
        self._watch = LoopWatch(run)

    def to_the_end(self) -> TailRun:
        """Wait for the steps, then for the groups that were submitted between the first and the last of them."""
        last_step = WARM_UP_STEPS + self._shape.steps
        try:
            self._until(lambda: self._watch.state.step >= last_step, f"step {last_step}")
            steps = self._watch.surviving_steps
            begin, end = steps[WARM_UP_STEPS - 1].finished_at, steps[last_step - 1].finished_at
            counted = self._submitted(begin, end)
            self._until(lambda: counted <= self._watch.closed.keys(), "the last groups that count")
            return TailRun(
                found=self._outcomes(counted),
                steps=tuple(steps[WARM_UP_STEPS:last_step]),
                cpu_seconds_per_step=self._cpu.per_step(WARM_UP_STEPS),
            )
        finally:
            self._watch.close()

    def _until(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait, as long as groups close and no stage ends for good."""
        num_closed, step, deadline = 0, -1, time.monotonic() + _STALLED_SECONDS
        while not is_there():
            self._supervisor.tick()
            state = self._watch.poll()
            if state.step != step:
                step = state.step
                self._cpu.note(step)
            if state.groups_trained + state.groups_dropped != num_closed:
                num_closed = state.groups_trained + state.groups_dropped
                deadline = time.monotonic() + _STALLED_SECONDS
            have_ended = any(stage.state not in _GOING_ON for stage in self._supervisor.statuses())
            if have_ended or time.monotonic() > deadline:
                raise BrokenWorldError(
                    f"{what} did not come, the last step is {step}:\n{self._supervisor.ends_of_logs()}"
                )

    def _submitted(self, begin: datetime, end: datetime) -> set[str]:
        return {prompt.group_id for prompt in self._run.read(PROMPTS) if begin < prompt.submitted_at <= end}

    def _outcomes(self, counted: set[str]) -> Outcomes:
        closed = self._watch.closed
        answers: dict[str, tuple[str, int]] = {}
        for scored in self._run.read(SCORED):
            rollout = scored.rollout
            # Of two attempts at a sample the first one, as the trainer takes it.
            answers.setdefault(rollout.rollout_id, (rollout.group_id, rollout.num_completion_tokens))
        return outcomes(list(answers.values()), {group: closed[group].reason or TRAINED for group in counted})
