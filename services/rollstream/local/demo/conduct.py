"""Runs the demo: prepare, evaluate, run the loop, evaluate again, and compute the figures from the topics.

This process only starts the stages, watches the topics and, if asked to, kills one stage. All work on prompts is done
by the stages.
"""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from rollstream.bus.run import Run
from rollstream.client.evaluate import EvaluationReport, EvaluationRequest, evaluate
from rollstream.history.ledger import surviving
from rollstream.local.cores import divide_cores
from rollstream.local.demo import options, prepare
from rollstream.local.demo.facts import RunFacts, read_facts
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.picture import draw
from rollstream.local.demo.summary import Measured, Summary, num_incomplete, summarize
from rollstream.local.demo.view import View, plain_line
from rollstream.local.demo.watch import LoopState, LoopWatch
from rollstream.local.processes import Placement
from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import StageState, Supervisor, stage_process
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import BrokenWorldError

_LOG = logging.getLogger(__name__)
_START_SECONDS = 240.0
_STEP_SECONDS = 120.0
_UNFINISHED_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of a demo."""

    summary: Summary
    config: Path
    a_rollout: str
    """Id of a rollout that the last step trained on."""


def run_demo(demo: DemoOptions, console: Console) -> DemoResult:
    """Run the whole demo. The stack stays up unless the demo fails or `demo.keep_up` is false."""
    demo.run_dir.mkdir(parents=True, exist_ok=True)
    # Not tied to this process: the commands that the demo names at its end need the stack.
    stack = LocalStack(demo.run_dir, placement=replace(divide_cores().rest, dies_with_parent=False))
    try:
        result = _run_on(stack, demo, console)
    except BaseException:
        stack.down()
        raise
    if not demo.keep_up:
        stack.down()
    return result


def _run_on(stack: LocalStack, demo: DemoOptions, console: Console) -> DemoResult:
    console.print(f"[bold]1/4[/] Kafka, Redis and a model of a million parameters, in {demo.run_dir}")
    with ThreadPoolExecutor(1) as warming:
        warmed = warming.submit(prepare.warm_up, demo)
        stack.up()
        config = prepare.write_run_file(demo, stack)
        prepare.make_topics(demo, stack)
        warmed.result()
    settings = StageSettings.load(config)
    with Supervisor(demo.run_dir) as supervisor:
        measured, steps = _Conductor(demo, settings, config, supervisor, console).run()
    facts = read_facts(Run(settings))
    summary = summarize(facts, measured)
    summary.write(demo.run_dir / "summary.json")
    draw(steps.surviving_steps, demo.run_dir / "reward.png")
    return DemoResult(summary=summary, config=config, a_rollout=_last_trained(facts))


def _last_trained(facts: RunFacts) -> str:
    return next(entry.trained[-1].rollout_id for entry in reversed(facts.ledger) if entry.trained)


class _Conductor:
    """Starts the stages in order and follows the run on its topics."""

    def __init__(
        self, demo: DemoOptions, settings: StageSettings, config: Path, supervisor: Supervisor, console: Console
    ) -> None:
        self._demo = demo
        self._run = Run(settings)
        self._config = config
        self._supervisor = supervisor
        self._console = console
        self._cores = divide_cores()
        self._watch = LoopWatch(self._run)

    def run(self) -> tuple[Measured, LoopWatch]:
        """Evaluate, run the loop, and evaluate the same held-out prompts again."""
        self._console.print("[bold]2/4[/] generator (vLLM), scorer (Faust) and trainer start as processes")
        self._start("generator", self._cores.engine)
        self._start("trainer", self._cores.trainer)
        self._start("scorer", self._cores.rest)
        self._until(lambda state: state.version_applied == 0, _START_SECONDS, "version 0 to be loaded")
        before = self._evaluate(0)
        self._console.print(f"[bold]3/4[/] {self._demo.num_steps} optimizer steps")
        self._start("producer", self._cores.rest)
        self._train()
        self._supervisor.stop("producer")
        newest = self._watch.state.version_published
        self._until(lambda state: state.version_applied == newest, _STEP_SECONDS, f"version {newest} to be loaded")
        self._console.print("[bold]4/4[/] the same held-out prompts again")
        after = self._evaluate(newest or 0)
        self._show_answers(before, after)
        self._until_finished()
        self._supervisor.stop()
        measured = Measured(
            seed=self._demo.seed,
            learning_rate=self._demo.learning_rate,
            eval_before=_mean(before),
            eval_after=_mean(after),
            eval_prompts=after.num_completed,
            killed=self._demo.kill,
        )
        return measured, self._watch

    def _start(self, stage: str, placement: Placement) -> None:
        self._supervisor.start(stage_process(stage, self._config, placement=placement))

    def _train(self) -> None:
        is_killed = self._demo.kill is None
        deadline = time.monotonic() + _START_SECONDS
        last_step = 0
        with View(self._console, self._supervisor, self._demo.num_steps) as view:
            while self._supervisor.status("trainer").state is not StageState.FINISHED:
                state = self._look()
                view.show(state)
                if state.step != last_step:
                    last_step, deadline = state.step, time.monotonic() + _STEP_SECONDS
                if not is_killed and state.step >= self._demo.num_steps // 2 and self._demo.kill:
                    self._supervisor.kill(self._demo.kill)
                    self._console.print(f"[red]kill -9[/] of the {self._demo.kill} at step {state.step}")
                    is_killed = True
                self._check(deadline, f"step {state.step + 1}")
        self._until(lambda state: state.step >= self._demo.num_steps, _STEP_SECONDS, "the last ledger entry")
        _LOG.info("%s", plain_line(self._watch.state, self._demo.num_steps))

    def _look(self) -> LoopState:
        self._supervisor.tick()
        return self._watch.poll()

    def _until(self, is_true: Callable[[LoopState], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_true(self._look()):
            self._check(deadline, what)

    def _check(self, deadline: float, what: str) -> None:
        for stage in self._supervisor.statuses():
            if stage.state in (StageState.MISCONFIGURED, StageState.FENCED):
                raise BrokenWorldError(f"the {stage.name} ended with exit code {stage.exit_code}: see {stage.log}")
        if time.monotonic() > deadline:
            raise BrokenWorldError(f"waited too long for {what}: see the logs in {self._demo.run_dir / 'logs'}")

    def _evaluate(self, version: int) -> EvaluationReport:
        request = EvaluationRequest(
            environment=options.ENVIRONMENT, weight_version=version, num_prompts=options.EVAL_PROMPTS
        )
        report = evaluate(self._run, request)
        if report.num_completed < options.EVAL_PROMPTS:
            why = "; ".join(f"{failure.count} x {failure.code.value}: {failure.example}" for failure in report.failures)
            raise BrokenWorldError(f"version {version} was not evaluated: {why}")
        self._console.print(
            f"    version {version}: mean reward {_mean(report):.3f} on {report.num_completed} held-out prompts, greedy"
        )
        return report

    def _show_answers(self, before: EvaluationReport, after: EvaluationReport) -> None:
        pairs = zip(before.prompts, after.prompts, strict=True)
        one, other = max(pairs, key=lambda pair: (pair[1].reward or 0.0) - (pair[0].reward or 0.0))
        self._console.print(
            f"    {one.prompt.messages[-1].content!r}: before {one.answer!r}, after {other.answer!r}, "
            f"reference answer {one.prompt.reference_answer!r}",
            highlight=False,
        )

    def _until_finished(self) -> None:
        """Wait until every submitted group has all its samples. Groups that are incomplete at the deadline are lost."""
        deadline = time.monotonic() + _UNFINISHED_SECONDS
        while time.monotonic() < deadline:
            facts = read_facts(self._run)
            open_groups = facts.submitted - set(surviving(facts.ledger).closed)
            if num_incomplete(facts.samples, open_groups) == 0:
                return
            self._look()


def _mean(report: EvaluationReport) -> float:
    return math.nan if report.mean_reward is None else report.mean_reward
