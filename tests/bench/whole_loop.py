"""Runs all stages of a run as processes, on a stack of its own, and follows the run step by step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from rollstream.bus.run import Run
from rollstream.local.cores import divide_cores
from rollstream.local.demo import prepare
from rollstream.local.demo.watch import LoopWatch
from rollstream.local.keep_alive import StageState
from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import Supervisor, stage_process
from rollstream.process.settings.base import Stage, StageSettings
from rollstream.schemas.errors import BrokenWorldError

_ENGINE: Final = "VLLM::EngineCor"
"""The name of the process in which vLLM runs its model, as far as Linux keeps it."""
_GONE: Final = (StageState.FENCED, StageState.MISCONFIGURED)


class WholeLoop:
    """A run whose stages live."""

    def __init__(self, run: Run, stack: LocalStack, supervisor: Supervisor, start: Callable[[Stage], None]) -> None:
        self.run = run
        self.watch = LoopWatch(run)
        self._stack = stack
        self._supervisor = supervisor
        self._start = start
        self._used: dict[int, dict[str, float]] = {}

    def start_producer(self) -> None:
        """Pose tasks, where that was not begun with all else."""
        self._start("producer")

    def until(self, is_there: Callable[[], bool], what: str, stalled_seconds: float) -> None:
        """Wait, as long as steps are made or groups close, and no stage ends for good."""
        closed, deadline = -1, time.monotonic() + stalled_seconds
        while not is_there():
            self._supervisor.tick()
            state = self.watch.poll()
            if state.step not in self._used:
                self._used[state.step] = self._cpu_seconds()
                deadline = time.monotonic() + stalled_seconds
            if state.groups_trained + state.groups_dropped != closed:
                closed, deadline = state.groups_trained + state.groups_dropped, time.monotonic() + stalled_seconds
            has_ended = any(stage.state in _GONE for stage in self._supervisor.statuses())
            if has_ended or time.monotonic() > deadline:
                raise BrokenWorldError(
                    f"{what} did not come, the last step is {state.step}:\n{self._supervisor.ends_of_logs()}"
                )

    def cpu_seconds_per_step(self, after: int) -> dict[str, float]:
        """Mean CPU seconds of a step by process, between the first look at or after step `after` and the last look."""
        first = min((step for step in self._used if step >= after), default=0)
        # The trainer ends with its last step, so it may be missing from the last look.
        last = max((step for step, used in self._used.items() if "trainer" in used), default=0)
        if last <= first:
            return {}
        begin, end = self._used[first], self._used[last]
        return {name: (end[name] - begin.get(name, 0.0)) / (last - first) for name in end}

    def _cpu_seconds(self) -> dict[str, float]:
        """What all processes have used until now: the stages, vLLM's engine, Kafka and Redis."""
        used: dict[str, float] = {}
        roots = {service.name: service.pid for service in self._stack.status()}
        roots |= {stage.name: stage.pid for stage in self._supervisor.statuses()}
        for name, pid in roots.items():
            for process_name, seconds in _tree(name, pid):
                used[process_name] = used.get(process_name, 0.0) + seconds
        return used


@contextmanager
def a_whole_loop(directory: Path, settings: dict[str, Any], *, poses: bool = True) -> Iterator[WholeLoop]:
    """Start everything in `directory`, with these settings of the stages, and stop it when the block ends.

    Without `poses` all but the producer.
    """
    cores = divide_cores()
    stack = LocalStack(directory, placement=cores.rest)
    stack.up()
    try:
        config = prepare.write_run_file(directory, stack, settings)
        run = Run(StageSettings.load(config))
        run.admin().create_topics(run.name, partitions=2)
        with Supervisor(directory) as supervisor:

            def start(stage: Stage) -> None:
                supervisor.start(stage_process(stage, config, placement=cores.placement_of(stage)))

            stages: tuple[Stage, ...] = ("generator", "trainer", "scorer", "producer")
            for stage in stages[: None if poses else -1]:
                start(stage)
            loop = WholeLoop(run, stack, supervisor, start)
            try:
                yield loop
            finally:
                loop.watch.close()
    finally:
        stack.down()


def _tree(name: str, pid: int | None) -> list[tuple[str, float]]:
    """Of the process and all below it: name and CPU seconds. A process that has ended is left out."""
    found = []
    try:
        root = psutil.Process(pid) if pid is not None else None
        for process in [root, *root.children(recursive=True)] if root else []:
            times = process.cpu_times()
            is_engine = process.name().startswith(_ENGINE)
            found.append(("engine" if is_engine else name, times.user + times.system))
    except psutil.NoSuchProcess:
        pass
    return found
