"""Runs the stages as child processes, restarts those that die, and makes sure that none outlives it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from rollstream.local.cores import thread_environment
from rollstream.local.keep_alive import Backoff, KeptAlive, StageState
from rollstream.local.processes import TIED_TO_PARENT, ChildProcess, Placement, stop_all

GRACE_SECONDS = 20.0

logger = logging.getLogger(__name__)


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
class _Child:
    name: str
    log: Path
    kept: KeptAlive[ChildProcess]

    @property
    def is_live(self) -> bool:
        return self.kept.state in (StageState.RUNNING, StageState.WAITING)


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
        if old is not None and old.is_live:
            raise ValueError(f"{spec.name} already runs: stop it first, or give the new one another name")
        log = self._logs / f"{spec.name}.log"
        kept = KeptAlive(start=lambda: _launched(spec, log), backoff=self._backoff)
        self._children[spec.name] = _Child(name=spec.name, log=log, kept=kept)

    def tick(self) -> None:
        """Notice children that ended, and restart those whose wait is over. Returns at once."""
        for child in self._children.values():
            process = child.kept.process
            if child.kept.look() is not None:
                # It has ended itself; this ends the processes that it started and left in its session.
                process.kill()
                _tell_end(child)

    def ends_of_logs(self) -> str:
        """What the children said last, for an error whose reader may not find the logs any more."""
        return "\n".join(f"{child.name}: {child.log.read_text()[-2000:]}" for child in self.statuses())

    def statuses(self) -> tuple[StageStatus, ...]:
        """Every child, as of the last tick, in the order they were started."""
        return tuple(
            StageStatus(
                name=child.name,
                state=child.kept.state,
                pid=child.kept.process.pid if child.kept.state is StageState.RUNNING else None,
                restarts=child.kept.restarts,
                exit_code=child.kept.exit_code,
                log=child.log,
            )
            for child in self._children.values()
        )

    def status(self, name: str) -> StageStatus:
        """One child as of the last tick."""
        return next(status for status in self.statuses() if status.name == name)

    def kill(self, name: str) -> None:
        """kill -9, to show or test a failure: the child is restarted like any child that dies."""
        self._children[name].kept.process.kill()

    def stop(self, *names: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM to the named children (default: all) at once, SIGKILL after `grace_seconds`. None is restarted."""
        chosen = [self._children[name] for name in names] if names else list(self._children.values())
        live = [child.kept for child in chosen if child.is_live]
        stop_all([kept.process for kept in live], grace_seconds)
        for kept in live:
            kept.exit_code, kept.state = kept.process.exit_code(), StageState.STOPPED


def _launched(spec: StageProcess, log: Path) -> ChildProcess:
    env = {**os.environ, **thread_environment(spec.placement), **spec.env}
    process = ChildProcess.start(spec.command, log, env=env, placement=spec.placement)
    logger.info("%s started, pid %d, log %s", spec.name, process.pid, log)
    return process


def _tell_end(child: _Child) -> None:
    kept, now = child.kept, time.monotonic()
    if kept.state is not StageState.WAITING:
        logger.info("%s ended with exit code %s: %s", child.name, kept.exit_code, kept.state)
        return
    logger.warning(
        "%s ended with exit code %s after %.0f s, restart in %.1f s; its log: %s",
        child.name, kept.exit_code, now - kept.started_at, kept.restart_at - now, child.log,
    )  # fmt: skip
