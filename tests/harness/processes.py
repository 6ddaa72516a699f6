"""Processes that tests start, signal and watch."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.harness.waits import DEADLINE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class StartedProcess:
    """A child of this process; `exit_code` gives its exit code, minus the signal's number if one killed it."""

    pid: int
    exit_code: Callable[[], int | None]
    log: Path | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it ended, by itself or by a signal."""
        return self.exit_code() is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a SIGSTOP took effect."""
        return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def said(self) -> str:
        """What it wrote to its log."""
        return "" if self.log is None else self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if not self.has_ended:
            os.kill(self.pid, number)

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for its end; the exit code."""
        wait_until(lambda: self.has_ended, lambda: f"process {self.pid} to end; log:\n{self.said()[-3000:]}", seconds)
        code = self.exit_code()
        assert code is not None
        return code

    def terminate(self, seconds: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """kill -9, also of a stopped one."""
        self.signal(signal.SIGKILL)
        self.wait(10)


def start_process(
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> StartedProcess:
    """Start a command in the repository's root; its output goes to `log`, or where this process's output goes."""
    output = None if log is None else log.open("ab")
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=output, stderr=output, pass_fds=pass_fds
        )
    finally:
        if output is not None:
            output.close()
    return StartedProcess(pid=process.pid, exit_code=process.poll, log=log)


def runs(pid: int | None) -> bool:
    """Whether there is such a process, and it has not ended."""
    assert pid is not None
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
