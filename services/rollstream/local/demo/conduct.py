"""Runs the demo: prepare, evaluate, run the loop, evaluate again, and compute the figures from the topics.

This process only starts the stages, watches the topics and, if asked to, kills one stage. All work on prompts is done
by the stages.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, get_native_id

from rich.console import Console

from rollstream.bus.run import Run
from rollstream.client.evaluate import evaluate
from rollstream.client.evaluation import EvaluationReport, EvaluationRequest
from rollstream.history.ledger import surviving
from rollstream.history.passing import read_entries
from rollstream.local.cores import divide_cores
from rollstream.local.demo import options, prepare
from rollstream.local.demo.facts import FactsReader, RunFacts
from rollstream.local.demo.options import DemoOptions
from rollstream.local.demo.summary import Measured, RunSummary, num_incomplete, summarize
from rollstream.local.demo.view import View, draw, plain_line
from rollstream.local.demo.watch import LoopState, LoopWatch
from rollstream.local.keep_alive import StageState
from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import Supervisor, stage_process
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ledger import LedgerEntry

_LOG = logging.getLogger(__name__)
_START_SECONDS = 240.0
_STEP_SECONDS = 120.0
_UNFINISHED_SECONDS = 60.0
_READ_EVERY_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of a demo."""

    summary: RunSummary
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
    with ThreadPoolExecutor(2) as aside:
        warmed = aside.submit(prepare.warm_up, demo)
        untrained = aside.submit(prepare.untrained_model)
        stack.up()
        settings = prepare.stage_settings(demo, generators_start_with=untrained.result())
        config = prepare.write_run_file(demo.run_dir, stack, settings)
        prepare.make_topics(demo, stack)
        with Supervisor(demo.run_dir) as supervisor:
            measured, facts = _Conductor(demo, config, supervisor, console).run(warmed)
    summary = summarize(facts, measured)
    summary.write(demo.run_dir / "summary.json")
    trained = next(entry.trained[-1] for entry in reversed(facts.ledger) if entry.trained)
    return DemoResult(summary=summary, config=config, a_rollout=trained.rollout_id)


class _Conductor:
    """Starts the stages in order and follows the run on its topics."""

    def __init__(self, demo: DemoOptions, config: Path, supervisor: Supervisor, console: Console) -> None:
        self._demo = demo
        self._run = Run(StageSettings.load(config))
        self._config = config
        self._supervisor = supervisor
        self._console = console
        self._cores = divide_cores()
        self._watch = LoopWatch(self._run)

    def run(self, warmed: Future[Path]) -> tuple[Measured, RunFacts]:
        """Evaluate, run the loop, and evaluate the same held-out prompts again; `warmed` ends with the warm-up."""
        self._console.print("[bold]2/4[/] generator (vLLM), scorer (Faust) and trainer start as processes")
        self._start_stages(warmed)
        # The producer takes seconds to start. The held-out prompts are submitted by then, so they come first.
        before = self._evaluate(0, lambda _answered: self._start_once("producer"))
        self._console.print(f"[bold]3/4[/] {self._demo.num_steps} optimizer steps")
        topics = FactsReader(self._run)
        with _reading_along(topics):
            self._train()
        self._console.print("[bold]4/4[/] the same held-out prompts again")
        after, facts = self._finish(topics)
        self._show_answers(before, after)
        measured = Measured(
            seed=self._demo.seed,
            learning_rate=self._demo.learning_rate,
            eval_before=_mean(before),
            eval_after=_mean(after),
            eval_prompts=after.num_completed,
            killed=self._demo.kill,
        )
        return measured, facts

    def _start_stages(self, warmed: Future[Path]) -> None:
        """Start all but the producer, until version 0 generates.

        The generator is first, as vLLM takes longest; it then waits for the version that the trainer publishes.
        """
        self._start("generator")
        self._start("scorer")
        # The warm-up has a deadline of its own.
        self._until(lambda _: warmed.done(), math.inf, "the warm-up")
        warmed.result()
        self._start("trainer")
        self._until(lambda state: state.version_applied == 0, _START_SECONDS, "version 0 to be loaded")

    def _finish(self, topics: FactsReader) -> tuple[EvaluationReport, RunFacts]:
        """Evaluate the newest version, and end the stages once nothing is left to do.

        Meanwhile the topics are read on, on the core that the trainer has left.
        """
        newest = self._watch.state.version_published or 0
        with ThreadPoolExecutor(1) as aside:
            reading = aside.submit(topics.read_on)
            self._until(lambda state: state.version_applied == newest, _STEP_SECONDS, f"version {newest} to be loaded")
            after = self._evaluate(newest)
            reading.result()
            ledger = self._until_finished(topics)
            drawn = aside.submit(draw, self._watch.surviving_steps, self._demo.run_dir / "reward.png")
            self._supervisor.stop()
            drawn.result()
        # What the stages wrote until they ended.
        topics.read_on()
        return after, topics.facts(ledger)

    def _start(self, stage: str) -> None:
        self._supervisor.start(stage_process(stage, self._config, placement=self._cores.placement_of(stage)))

    def _start_once(self, stage: str) -> None:
        if stage not in {status.name for status in self._supervisor.statuses()}:
            self._start(stage)

    def _train(self) -> None:
        is_killed = self._demo.kill is None
        deadline = time.monotonic() + _START_SECONDS
        last_step = 0
        with View(self._console, self._supervisor, self._demo.num_steps) as view:
            while (state := self._look()).step < self._demo.num_steps:
                view.show(state)
                if state.step != last_step:
                    last_step, deadline = state.step, time.monotonic() + _STEP_SECONDS
                if not is_killed and state.step >= self._demo.num_steps // 2 and self._demo.kill:
                    self._supervisor.kill(self._demo.kill)
                    self._console.print(f"[red]kill -9[/] of the {self._demo.kill} at step {state.step}")
                    is_killed = True
                self._check(deadline, f"step {state.step + 1}")
            view.show(state)
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

    def _evaluate(self, version: int, on_progress: Callable[[int], None] = lambda _answered: None) -> EvaluationReport:
        request = EvaluationRequest(
            environment=options.ENVIRONMENT, weight_version=version, num_prompts=options.EVAL_PROMPTS
        )
        report = evaluate(self._run, request, on_progress)
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

    def _until_finished(self, topics: FactsReader) -> list[LedgerEntry]:
        """Wait until the trainer has ended and every submitted group has all its samples; returns the whole ledger.

        Groups that are incomplete at the deadline are lost.
        """
        status = self._supervisor.status
        self._until(lambda _: status("trainer").state is StageState.FINISHED, _STEP_SECONDS, "the trainer to end")
        ledger = read_entries(self._run)
        closed = set(surviving(ledger).closed)
        deadline = time.monotonic() + _UNFINISHED_SECONDS
        while time.monotonic() < deadline:
            topics.read_on()
            facts = topics.facts(ledger)
            if num_incomplete(facts.samples, facts.submitted - closed) == 0:
                break
            self._look()
        return ledger


@contextmanager
def _reading_along(topics: FactsReader) -> Iterator[None]:
    """During the block the topics are read now and then, in the time that the stages leave: to read all takes 10 s."""
    has_ended = Event()

    def read() -> None:
        # Of this thread alone. The lowest priority: what the stages do comes first.
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)
        while not has_ended.wait(_READ_EVERY_SECONDS):
            topics.read_on()

    with ThreadPoolExecutor(1) as aside:
        reading = aside.submit(read)
        try:
            yield
        finally:
            has_ended.set()
        reading.result()


def _mean(report: EvaluationReport) -> float:
    return math.nan if report.mean_reward is None else report.mean_reward
