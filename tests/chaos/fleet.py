"""Keeps the stages of a campaign alive, as a cluster would, and notes every end that no fault explains.

What ends is started again after a short wait, whatever its exit code. Two ends are not healed by a restart, as the
README says. A trainer that was replaced (75) stays away, unless no other trainer is left. Usage and configuration
errors (2, 78) never heal; here nobody changes a configuration, so they are unexpected, unless a topic was made anew.
"""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from rollstream.local.keep_alive import FENCED, NOT_HEALED_BY_RESTART, Backoff, KeptAlive, StageState
from rollstream.process.settings.base import STAGES, Stage
from rollstream.schemas.errors import ConfigurationError, RollstreamError

_LOG = logging.getLogger(__name__)
_GRACE_SECONDS: Final = 40.0
_LOOK_EVERY_SECONDS: Final = 0.05
_KILLED_WITHIN_SECONDS: Final = 10.0
_BROKEN_WORLD: Final = 70
_TRACEBACK: Final = b"Traceback (most recent call last)"
_LAST_BYTES: Final = 4096
_BACKOFF: Final = Backoff(first_seconds=0.2, longest_seconds=4.0, healthy_after_seconds=10.0)


class Process(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        ...


Launch = Callable[[Stage, str, Path], Process]
"""(stage, name, log) → the process that was started."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that was started, and its log."""

    process: Process
    log: Path

    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self.process.exit_code()


@dataclass(slots=True, kw_only=True)
class Member(KeptAlive[Launched]):
    """One process of a stage, under a name that its successors keep. `explained`: exit codes that faults lead to."""

    stage: Stage
    name: str
    explained: set[int] = field(default_factory=set)
    is_suspended: bool = False
    is_leaving: bool = False
    must_end_by: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it runs; a suspended one does."""
        return self.state is StageState.RUNNING

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last."""
        return self.process.process.pid

    @property
    def log(self) -> Path:
        """Of the process that runs now, or ran last."""
        return self.process.log


class Fleet:
    """The members. It has no thread: call `tick` several times a second."""

    def __init__(self, launch: Launch, logs: Path) -> None:
        self._launch = launch
        self._logs = logs
        self._members: dict[str, Member] = {}
        self._num_launched = 0
        self._fenced_at = 0.0
        self._broken_until: dict[Stage, float] = {}
        self._refused_until: dict[Stage, float] = {}
        self.ends: Counter[str] = Counter()
        """How often a stage ended with a code."""
        self.unexpected: list[str] = []
        """Ends, hangs and tracebacks that no fault explains."""

    def members(self, *stages: Stage) -> list[Member]:
        """Those that run and were not asked to leave, of all stages or of some, in the order of their start."""
        chosen = [member for member in self._members.values() if not stages or member.stage in stages]
        return [member for member in chosen if member.is_running and not member.is_leaving]

    def free(self, *stages: Stage) -> list[Member]:
        """The same without those that are suspended."""
        return [member for member in self.members(*stages) if not member.is_suspended]

    def count(self, stage: Stage) -> int:
        """How many there are of a stage, with those that wait to be started again."""
        return sum(member.stage == stage for member in self._members.values())

    def start(self, stage: Stage, name: str) -> Member:
        """Start one more process."""
        member = Member(stage=stage, name=name, start=partial(self._launched, stage, name), backoff=_BACKOFF)
        self._members[name] = member
        return member

    def kill(self, member: Member) -> None:
        """kill -9 of this process alone, not of its children."""
        member.explained.add(-signal.SIGKILL)
        self._signal(member, signal.SIGKILL)

    def terminate(self, member: Member, *, leave: bool = False) -> None:
        """SIGTERM. With `leave` it is not started again."""
        # While Python starts, no handler is there yet.
        member.explained |= {0, -signal.SIGTERM}
        member.is_leaving = leave
        member.must_end_by = time.monotonic() + _GRACE_SECONDS
        self._signal(member, signal.SIGTERM)

    def suspend(self, member: Member) -> None:
        """SIGSTOP."""
        member.is_suspended = True
        self._signal(member, signal.SIGSTOP)

    def resume(self, member: Member) -> None:
        """SIGCONT."""
        member.is_suspended = False
        self._signal(member, signal.SIGCONT)

    def expect_end(self, name: str, code: int) -> None:
        """Note that the process that runs under this name now may end with this code."""
        if name in self._members:
            self._members[name].explained.add(code)

    def expect_fencing(self) -> None:
        """Note that whoever trains now is replaced."""
        self._fenced_at = time.monotonic()

    def expect_broken_world(self, seconds: float, *stages: Stage) -> None:
        """Note that for some time these stages (default: all) may find nothing as they need it, and end."""
        for stage in stages or STAGES:
            self._broken_until[stage] = max(self._broken_until.get(stage, 0.0), time.monotonic() + seconds)

    def expect_refusal(self, seconds: float, *stages: Stage) -> None:
        """Note that for some time these stages may refuse to start; they are started again meanwhile."""
        for stage in stages:
            self._refused_until[stage] = time.monotonic() + seconds

    def tick(self) -> None:
        """Notice what ended, start again what is due, and end what does not end by itself."""
        for member in list(self._members.values()):
            if member.is_leaving and not member.is_running:
                del self._members[member.name]
                continue
            member.look(partial(self._ended, member))
            if member.state is StageState.STOPPED:
                del self._members[member.name]
            elif member.must_end_by is not None and time.monotonic() > member.must_end_by:
                self.unexpected.append(f"{member.name} ran on for {_GRACE_SECONDS:g} s after SIGTERM: {member.log}")
                member.must_end_by = None
                self.kill(member)

    def stop(self, *stages: Stage) -> None:
        """SIGTERM to all of these stages (default: all), and wait for their end. None is started again."""
        chosen = [member for member in self._members.values() if not stages or member.stage in stages]
        for member in chosen:
            if member.is_running:
                self.terminate(member, leave=True)
            else:
                del self._members[member.name]
        while any(self._members.get(member.name) is member for member in chosen):
            self.tick()
            time.sleep(_LOOK_EVERY_SECONDS)

    @contextmanager
    def ended(self, problems: list[str]) -> Iterator[None]:
        """Whatever happens, no process outlives the block; what went wrong is one more of `problems`."""
        try:
            yield
            self.stop()
        except (AssertionError, RollstreamError) as error:
            problems.append(f"{type(error).__name__}: {error}")
        finally:
            self.kill_all()

    def kill_all(self) -> None:
        """kill -9 of everything, at the end of a campaign that failed, and wait for it."""
        for member in self._members.values():
            self._signal(member, signal.SIGKILL)
        deadline = time.monotonic() + _KILLED_WITHIN_SECONDS
        while time.monotonic() < deadline and any(one.process.exit_code() is None for one in self._members.values()):
            time.sleep(_LOOK_EVERY_SECONDS)

    def _launched(self, stage: Stage, name: str) -> Launched:
        self._num_launched += 1
        log = self._logs / f"{name}-{self._num_launched}.log"
        process = self._launch(stage, name, log)
        if stage == "trainer" and self._has_another(stage, name):
            self.expect_fencing()
        return Launched(process, log)

    def _ended(self, member: Member, code: int) -> StageState:
        """Note an end; what becomes of the member."""
        self.ends[f"{member.stage} {code}"] += 1
        now = time.monotonic()
        is_explained = self._is_explained(member, code, now)
        if not is_explained:
            self.unexpected.append(f"{member.name} ended with {code}: {member.log}: {_last_line(member.log)}")
        # An end that no fault explains has its line already; else a broken world may have been logged before the end.
        is_broken = code == _BROKEN_WORLD or now <= self._broken_until.get(member.stage, 0.0)
        if not is_broken and _TRACEBACK in member.log.read_bytes():
            self.unexpected.append(f"{member.name} wrote a traceback: {member.log}: {_last_line(member.log)}")
        _LOG.info("%s ended with %d%s", member.name, code, "" if is_explained else ", which no fault explains")
        member.explained.clear()
        member.is_suspended, member.must_end_by = False, None
        is_over = code in NOT_HEALED_BY_RESTART and not is_explained
        is_replaced = code == FENCED and self._has_another(member.stage, member.name)
        return StageState.STOPPED if member.is_leaving or is_over or is_replaced else StageState.WAITING

    def _is_explained(self, member: Member, code: int, now: float) -> bool:
        is_replaced = member.stage == "trainer" and member.started_at <= self._fenced_at
        if code == FENCED:
            return is_replaced
        if code == _BROKEN_WORLD:
            # A commit that meets its own fencing may get UNKNOWN_SERVER_ERROR: the coordinator of Kafka 4.3.1 throws
            # "Preparing transaction state transition … while it already a pending state PREPARE_EPOCH_FENCE".
            is_expected = code in member.explained or now <= self._broken_until.get(member.stage, 0.0)
            return is_replaced or is_expected
        if code == ConfigurationError.exit_code:
            return now <= self._refused_until.get(member.stage, 0.0)
        return code in member.explained

    def _has_another(self, stage: Stage, name: str) -> bool:
        return any(other.stage == stage and other.name != name for other in self._members.values())

    def _signal(self, member: Member, number: signal.Signals) -> None:
        if member.is_running and member.process.exit_code() is None:
            os.kill(member.pid, number)


def _last_line(log: Path) -> str:
    """What a process said last: the error that ended it."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")
