"""Keeps a process alive: starts it again when it dies, unless its exit code says that a restart would not help."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

FENCED: Final = 75
"""The exit code of a trainer that another trainer has replaced: a restart would fence that one in turn."""
NOT_HEALED_BY_RESTART: Final = frozenset({2, 78})
"""Usage and configuration errors: they would be the same after a restart."""


class StageState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"  # died, restarts after its backoff
    FINISHED = "finished"
    FENCED = "fenced"
    MISCONFIGURED = "misconfigured"
    STOPPED = "stopped"


class MortalProcess(Protocol):
    """A process that was started."""

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        ...


P = TypeVar("P", bound=MortalProcess)


def state_after(exit_code: int) -> StageState:
    """What becomes of a process that ended with this code."""
    if exit_code == 0:
        return StageState.FINISHED
    if exit_code == FENCED:
        return StageState.FENCED
    return StageState.MISCONFIGURED if exit_code in NOT_HEALED_BY_RESTART else StageState.WAITING


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
class KeptAlive(Generic[P]):
    """A process that `start` starts, now and after each death. It has no thread: call `look` several times a second."""

    start: Callable[[], P]
    backoff: Backoff = field(default_factory=Backoff)
    state: StageState = field(init=False)
    process: P = field(init=False)
    exit_code: int | None = field(default=None, init=False)
    """That of its last end; None if it never ended."""
    restarts: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    """In a row, without a long life between them."""
    started_at: float = field(init=False)
    """Monotonic seconds, as `restart_at`."""
    restart_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._launch()

    def look(self, rule: Callable[[int], StageState] = state_after) -> int | None:
        """Notice its end, and start it again once its wait is over; its exit code if it ended just now.

        `rule`: what becomes of it after an exit code.
        """
        now, code = time.monotonic(), None
        if self.state is StageState.RUNNING and (code := self.process.exit_code()) is not None:
            self.exit_code, self.state = code, rule(code)
            is_healthy = now - self.started_at >= self.backoff.healthy_after_seconds
            self.failures = 1 if is_healthy else self.failures + 1
            self.restart_at = now + self.backoff.delay(self.failures)
        if self.state is StageState.WAITING and now >= self.restart_at:
            self.restarts += 1
            self._launch()
        return code

    def _launch(self) -> None:
        self.started_at = time.monotonic()
        self.process = self.start()
        self.state = StageState.RUNNING
