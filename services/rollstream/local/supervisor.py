"""Runs the stages as child processes, restarts those that die, and makes sure that none outlives it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from rollstream.local.cores import thread_environment
from rollstream.local.processes import TIED_TO_PARENT, ChildProcess, Placement, stop_all

# The exit code of a trainer that another trainer has replaced: a restart would fence that one in turn.
FENCED = 75
# Usage and configuration errors: they would be the same after a restart.
NOT_HEALED_BY_RESTART = frozenset({2, 78})
GRACE_SECONDS = 20.0

logger = logging.getLogger(__name__)


class StageState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"  # died, restarts after its backoff
    FINISHED = "finished"
    FENCED = "fenced"
    MISCONFIGURED = "misconfigured"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProcess:
    """What to run: a name for its log and for tables, the command, additional environment variables, and where."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    placement: Placement = TIED_TO_PARENT


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """One child for a table. `exit_code` is that of its last end (negative: the signal), None if it never ended."""

    name: str
    state: StageState
    pid: int | None
    restarts: int
    exit_code: int | None
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a restart: `first_seconds`, then twice as long each time, up to `longest_seconds`.

    After a child has run for `healthy_after_seconds`, the wait is `first_seconds` again.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    healthy_after_seconds: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` failures in a row; `failures` is at least 1."""
        # The exponent is bounded, since a float overflows at 1024.
        return float(min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 16)))


@dataclass(slots=True, kw_only=True)
class _Child:
    spec: StageProcess
    log: Path
    state: StageState = StageState.STOPPED
    process: ChildProcess | None = None
    started_at: float = 0.0
    failures: int = 0
    restarts: int = 0
    exit_code: int | None = None
    restart_at: float = 0.0


def stage_process(
    stage: str,
    config: Path,
    *,
    name: str = "",
    env: Mapping[str, str] | None = None,
    placement: Placement = TIED_TO_PARENT,
) -> StageProcess:
    """`rollstream STAGE --config CONFIG`, run by this Python itself: uv could reinstall packages that are in use."""
    command = (sys.executable, "-m", "rollstream.cli.main", stage, "--config", str(config))
    return StageProcess(name=name or stage, command=command, env=env or {}, placement=placement)


class Supervisor:
    """Children of this process. Each logs to `<run_dir>/logs/<name>.log`.

    It has no thread of its own: call `tick` several times a second, from the thread that called `start`. The kernel
    kills a child when the thread that started it ends. So no child stays, even after a kill -9 of this process.
    """

    def __init__(self, run_dir: Path, *, backoff: Backoff | None = None) -> None:
        self._logs = run_dir.resolve() / "logs"
        self._backoff = backoff or Backoff()
        self._children: dict[str, _Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, spec: StageProcess) -> None:
        """Start a child and keep it running. The name of a child that has ended may be used again."""
        old = self._children.get(spec.name)
        if old is not None and old.state in (StageState.RUNNING, StageState.WAITING):
            raise ValueError(f"{spec.name} already runs: stop it first, or give the new one another name")
        child = _Child(spec=spec, log=self._logs / f"{spec.name}.log")
        self._children[spec.name] = child
        self._launch(child)

    def tick(self) -> None:
        """Notice children that ended, and restart those whose wait is over. Returns at once."""
        now = time.monotonic()
        for child in self._children.values():
            if child.state is StageState.RUNNING and child.process is not None:
                code = child.process.exit_code()
                if code is not None:
                    self._ended(child, code, now)
            if child.state is StageState.WAITING and now >= child.restart_at:
                child.restarts += 1
                self._launch(child)

    def ends_of_logs(self) -> str:
        """What the children said last, for an error whose reader may not find the logs any more."""
        return "\n".join(f"{child.name}: {child.log.read_text()[-2000:]}" for child in self.statuses())

    def statuses(self) -> tuple[StageStatus, ...]:
        """Every child, as of the last tick, in the order they were started."""
        return tuple(
            StageStatus(
                name=child.spec.name,
                state=child.state,
                pid=child.process.pid if child.state is StageState.RUNNING and child.process else None,
                restarts=child.restarts,
                exit_code=child.exit_code,
                log=child.log,
            )
            for child in self._children.values()
        )

    def status(self, name: str) -> StageStatus:
        """One child as of the last tick."""
        return next(status for status in self.statuses() if status.name == name)

    def kill(self, name: str) -> None:
        """kill -9, to show or test a failure: the child is restarted like any child that dies."""
        child = self._children[name]
        if child.process is not None:
            child.process.kill()

    def stop(self, *names: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM to the named children (default: all) at once, SIGKILL after `grace_seconds`. None is restarted."""
        chosen = [self._children[name] for name in names] if names else list(self._children.values())
        live = [child for child in chosen if child.state in (StageState.RUNNING, StageState.WAITING)]
        stop_all([child.process for child in live if child.process is not None], grace_seconds)
        for child in live:
            child.exit_code = child.process.exit_code() if child.process else child.exit_code
            child.state = StageState.STOPPED

    def _launch(self, child: _Child) -> None:
        spec = child.spec
        env = {**os.environ, **thread_environment(spec.placement), **spec.env}
        child.process = ChildProcess.start(spec.command, child.log, env=env, placement=spec.placement)
        child.started_at = time.monotonic()
        child.state = StageState.RUNNING
        logger.info("%s started, pid %d, log %s", spec.name, child.process.pid, child.log)

    def _ended(self, child: _Child, code: int, now: float) -> None:
        child.exit_code = code
        assert child.process is not None
        # It has ended itself; this ends the processes that it started and left in its session.
        child.process.kill()
        child.state = _state_after(code)
        if child.state is not StageState.WAITING:
            logger.info("%s ended with exit code %d: %s", child.spec.name, code, child.state)
            return
        lived = now - child.started_at
        child.failures = 1 if lived >= self._backoff.healthy_after_seconds else child.failures + 1
        delay = self._backoff.delay(child.failures)
        child.restart_at = now + delay
        logger.warning(
            "%s ended with exit code %d after %.0f s, restart in %.1f s; its log: %s",
            child.spec.name, code, lived, delay, child.log,
        )  # fmt: skip


def _state_after(exit_code: int) -> StageState:
    if exit_code == 0:
        return StageState.FINISHED
    if exit_code == FENCED:
        return StageState.FENCED
    return StageState.MISCONFIGURED if exit_code in NOT_HEALED_BY_RESTART else StageState.WAITING
