"""Starts the processes of a local stack, finds them again from a later process, and ends them."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict

from rollstream.process import parent as launcher
from rollstream.schemas.errors import StartFailedError

WAIT_SLICE_SECONDS = 0.05
# The kernel counts start times from boot. The wall time of the boot moves when the clock is set.
CREATE_TIME_TOLERANCE_SECONDS = 2.0


class ProcessRecord(BaseModel):
    """A process as it is written to disk. The start time distinguishes it from a later process with the same pid."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    pid: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how long a child runs: its cores (None: as the parent), its niceness, whether it ends with the parent.

    With `dies_with_parent` the kernel kills it when the *thread* that started it ends, so that thread must live as
    long as the child.
    """

    cores: frozenset[int] | None = None
    nice: int = 0
    dies_with_parent: bool = True


TIED_TO_PARENT = Placement()


class ChildProcess:
    """One process. This process started it, or an earlier process did and it was found by its record."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.record = ProcessRecord(pid=process.pid, started_at=process.create_time())

    @property
    def pid(self) -> int:
        return self.record.pid

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        placement: Placement = TIED_TO_PARENT,
    ) -> Self:
        """Start `command` in a session of its own. Its output is appended to `log`; `env` replaces the environment."""
        cores = "-" if placement.cores is None else ",".join(str(core) for core in sorted(placement.cores))
        parent = os.getpid() if placement.dies_with_parent else 0
        launched = [sys.executable, "-I", "-S", launcher.__file__, str(parent), cores, str(placement.nice), *command]
        log.parent.mkdir(parents=True, exist_ok=True)
        pid = os.posix_spawn(
            launched[0],
            launched,
            dict(os.environ if env is None else env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        return cls(psutil.Process(pid))

    @classmethod
    def find(cls, record: ProcessRecord) -> Self | None:
        """The process of `record` if it still runs; None if it ended or its pid now belongs to another process."""
        try:
            found = cls(psutil.Process(record.pid))
        except psutil.NoSuchProcess:
            return None
        same = abs(found.record.started_at - record.started_at) < CREATE_TIME_TOLERANCE_SECONDS
        return found if same and found.is_running() else None

    def is_running(self) -> bool:
        return self.exit_code() is None

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal. 0 also if it ended and is not a child of this process."""
        return self.wait(0)

    def wait(self, timeout_seconds: float) -> int | None:
        """Its exit code, or None if it still runs after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                code: int | None = self._process.wait(timeout=min(WAIT_SLICE_SECONDS, timeout_seconds))
                return 0 if code is None else int(code)
            except psutil.TimeoutExpired:
                if self._is_unreaped():
                    return 0
            if time.monotonic() >= deadline:
                return None

    def _is_unreaped(self) -> bool:
        """Whether it has ended, but its parent (not this process) has not waited for it.

        In a container the parent may never do so.
        """
        try:
            return bool(self._process.status() == psutil.STATUS_ZOMBIE and self._process.ppid() != os.getpid())
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        """Send SIGTERM; nothing if it has ended already."""
        if self.is_running():
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to it and to all processes that are left in its session, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(10.0)


def stop_all(processes: Sequence[ChildProcess], grace_seconds: float) -> None:
    """SIGTERM to all at once; after all ended or `grace_seconds`, SIGKILL to what is left of their sessions."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()


def failed_start(what: str, log: Path) -> StartFailedError:
    """The error to raise. It shows the last lines of `log`, which hold the reason."""
    lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else ["(no log was written)"]
    return StartFailedError(f"{what}; the end of {log}:\n  " + "\n  ".join(lines))
