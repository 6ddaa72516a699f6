"""Conducts a soak: keeps the stages alive, does what its schedule says, looks at them every few seconds.

The schedule: restarts, kills, rollbacks, a generator that joins and leaves.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.run import Run
from rollstream.history.read import read
from rollstream.history.rollback import roll_back
from rollstream.process.settings.base import Stage, StageSettings
from rollstream.process.stop import Stop
from rollstream.schemas.errors import BrokenWorldError, BrokerError, DiskFullError
from rollstream.schemas.topics import PROMPTS, ROLLOUTS
from tests.chaos.accounting import Account, OutsideClient
from tests.chaos.fleet import Fleet
from tests.chaos.leftovers import Leftovers
from tests.harness.scraping import scraped
from tests.soak.samples import Sample, Start, StartWatch, disk_mib, memory_and_handles

_TICK_SECONDS: Final = 0.1
_FIRST_STEP_SECONDS: Final = 240.0
_STANDS_STILL_SECONDS: Final = 240.0
_LEAST_FREE_BYTES: Final = 2**27
_VERSION: Final = "rollstream_trainer_weight_version"
JOINER: Final = "generator-2"
REPLACED: Final[dict[Stage, str]] = {
    "generator": "generator-1",
    "scorer": "scorer-1",
    "producer": "producer-1",
    "trainer": "trainer",
}
"""Of each stage the process that is restarted; the others run from the first step to the last."""
# Around a tenth of the steps, and near their end: there start times are compared. Between them the trainer, which is
# alone, runs on for half of the steps, so that its memory can show growth.
_COMPARED_RESTARTS_AT: Final = (0.06, 0.12, 0.18, 0.82, 0.88, 0.94)
_OTHER_RESTARTS_AT: Final = (0.36, 0.56, 0.76)
_ROLLBACKS_AT: Final = (0.26, 0.98)
_JOINER_COMES_AT, _JOINER_LEAVES_AT = 0.42, 0.5
_APART: Final = 0.01


class Kind(StrEnum):
    """What is done."""

    RESTART = "restart"
    KILL = "kill -9"
    ROLL_BACK = "roll back"
    JOIN = "join"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Event:
    """At this share of the steps, this is done to a process of this stage."""

    at: float
    kind: Kind
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a soak saw, and what went wrong that no event explains.

    `steps`: weight versions. `surviving_steps`: optimizer steps on the surviving branch at the end.
    """

    seconds: float
    steps: int
    surviving_steps: int
    samples: tuple[Sample, ...]
    starts: tuple[Start, ...]
    events: Mapping[str, int]
    dropped: Mapping[str, int]
    leftovers: Mapping[str, int]
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak. Steps are counted by weight versions, which only grow; a restart or rollback makes one too."""

    settings: StageSettings
    admin: KafkaAdmin
    fleet: Fleet
    stages: Mapping[str, Stage]
    watch: StartWatch
    leftovers: Leftovers
    directory: Path
    num_steps: int
    most_seconds: float
    sample_seconds: float
    say: Callable[[str], None]
    _step: int = 0
    _moved_at: float = field(default_factory=time.monotonic)
    _samples: list[Sample] = field(default_factory=list)
    _starts: list[Start] = field(default_factory=list)
    _events: Counter[str] = field(default_factory=Counter)
    _problems: list[str] = field(default_factory=list)

    def run(self, stop: Stop) -> Found:
        """Run to the last step or second, or until `stop` is asked; ends every process."""
        began = time.monotonic()
        account = Account.of_ledger(())
        with self.fleet.ended(self._problems):
            for name, stage in self.stages.items():
                self.fleet.start(stage, name)
            self._conduct(began, stop)
            self.say("ending every stage")
            self.fleet.stop()
            account = self._account()
        left = self.leftovers.found()
        return Found(
            seconds=time.monotonic() - began, steps=self._step, samples=tuple(self._samples),
            starts=tuple(self._starts), events=dict(self._events), surviving_steps=account.steps,
            dropped=dict(account.dropped), leftovers=left.counts,
            problems=(*self._problems, *self.fleet.unexpected, *left.problems),
        )  # fmt: skip

    def _conduct(self, began: float, stop: Stop) -> None:
        events, next_sample = schedule(), began
        while self._step < self.num_steps and time.monotonic() - began < self.most_seconds:
            if stop.is_asked:
                self._problems.append(f"it was told to end, at step {self._step} of {self.num_steps}")
                return
            self._tick()
            if time.monotonic() >= next_sample:
                next_sample += self.sample_seconds
                self._look(time.monotonic() - began)
            while events and self._progress(began) >= events[0].at:
                self._do(events.pop(0))

    def _progress(self, began: float) -> float:
        """Share of the soak that is over, by whichever of steps and time ends it first; 0 before the first step."""
        if self._step == 0:
            return 0.0
        return max(self._step / self.num_steps, (time.monotonic() - began) / self.most_seconds)

    def _tick(self) -> None:
        time.sleep(_TICK_SECONDS)
        self.fleet.tick()
        self._starts += self.watch.look(self._step)

    def _look(self, seconds: float) -> None:
        self._note_step()
        self._require_room()
        pids, memory, handles = {}, {}, {}
        for member in self.fleet.members():
            if found := memory_and_handles(member.pid):
                pids[member.name] = member.pid
                memory[member.name], handles[member.name] = found
        places = (self.directory / "weights", self.directory / "checkpoints")
        disk = disk_mib(self.settings.run, self.directory / "kafka", places)
        sample = Sample(
            seconds=seconds, step=self._step, pids=pids, memory_mib=memory, handles=handles, disk_mib=disk,
            lag=self._lag(),
        )  # fmt: skip
        self._samples.append(sample)
        if len(self._samples) % 6 == 1:
            self.say(f"step {self._step} after {seconds:.0f} s: {sum(memory.values()):.0f} MiB, lag {dict(sample.lag)}")

    def _note_step(self) -> None:
        step = max(self._step, int(scraped(self.watch.ports["trainer"], _VERSION) or 0))
        if step > self._step:
            self._step, self._moved_at = step, time.monotonic()
        patience = _STANDS_STILL_SECONDS if self._step else _FIRST_STEP_SECONDS
        if time.monotonic() - self._moved_at > patience:
            raise BrokenWorldError(f"no step for {patience:g} s, at {self._step}; unexpected: {self.fleet.unexpected}")

    def _require_room(self) -> None:
        """End the soak before its broker runs into a full disk, which it does not survive."""
        free = shutil.disk_usage(self.directory).free
        if free < _LEAST_FREE_BYTES:
            raise DiskFullError(
                f"{self.directory} has {free / 2**20:.0f} MiB free at step {self._step}, a soak needs at least "
                f"{_LEAST_FREE_BYTES / 2**20:.0f} MiB: make room there, or choose another --run-dir"
            )

    def _lag(self) -> dict[str, int]:
        """What the stages have not read yet. Without an answer the soak goes on, to show whether the stages do."""
        groups = ((PROMPTS, "generators"), (ROLLOUTS, "scorers"))
        run = self.settings.run
        try:
            lags = {topic.name: self.admin.lag(f"{run}.{members}", topic.of(run)) for topic, members in groups}
        except BrokerError as error:
            self._problems.append(f"at step {self._step}: {error}")
            return {}
        return {name: lag for name, lag in lags.items() if lag is not None}

    def _do(self, event: Event) -> None:
        self.say(f"step {self._step}: {event.kind.value} {event.stage}")
        self._events[event.kind.value] += 1
        if event.kind is Kind.JOIN:
            self.fleet.start("generator", JOINER)
            return
        if event.kind is Kind.ROLL_BACK:
            self._roll_back()
            return
        name = JOINER if event.kind is Kind.LEAVE else REPLACED[event.stage]
        for member in self.fleet.free(event.stage):
            if member.name == name and event.kind is Kind.KILL:
                self.fleet.kill(member)
            elif member.name == name:
                self.fleet.terminate(member, leave=event.kind is Kind.LEAVE)

    def _roll_back(self) -> None:
        """End the trainer, go back to the checkpoint before the newest, and start a trainer."""
        self.fleet.stop("trainer")
        checkpoints = read(Run(self.settings)).fold.checkpoints
        if checkpoints:
            roll_back(self.settings, checkpoints[-2:][0].weight_version, force=True)
        self.fleet.start("trainer", "trainer")

    def _account(self) -> Account:
        """A group that is lost, or closed twice on the surviving branch, is a problem."""
        outside = OutsideClient(self.settings.kafka.bootstrap_servers, self.settings.run)
        account = Account.of_ledger(outside.ledger())
        lost, twice = account.dropped["lost"], len(account.closed_twice)
        if lost or twice:
            self._problems.append(f"{lost} groups were lost, {twice} closed twice")
        return account


def schedule() -> list[Event]:
    """Every event of a soak, in order. Every other restart is a kill."""
    restarts = [
        Event(at=at + _APART * number, kind=Kind.KILL if (turn + number) % 2 else Kind.RESTART, stage=stage)
        for turn, at in enumerate(sorted((*_COMPARED_RESTARTS_AT, *_OTHER_RESTARTS_AT)))
        for number, stage in enumerate(REPLACED)
        if at in _COMPARED_RESTARTS_AT or stage != "trainer"
    ]
    rollbacks = [Event(at=at, kind=Kind.ROLL_BACK, stage="trainer") for at in _ROLLBACKS_AT]
    joiner = [
        Event(at=_JOINER_COMES_AT, kind=Kind.JOIN, stage="generator"),
        Event(at=_JOINER_LEAVES_AT, kind=Kind.LEAVE, stage="generator"),
    ]
    return sorted([*restarts, *rollbacks, *joiner])
