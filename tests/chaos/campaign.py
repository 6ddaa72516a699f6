"""A campaign: faults upon a run that lives, then the accounting of everything that was ever submitted to it."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from rollstream.process.terminal import Say
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, RollstreamError
from tests.chaos.accounting import Account
from tests.chaos.faults import EVERY_KIND, Fault, faults, make_fault
from tests.chaos.leftovers import Leftovers
from tests.chaos.served_accounting import ServedAccount
from tests.chaos.serving import CONSENTING, ONES_PER_GROUP
from tests.chaos.world import Undo, World

PROGRESS_SECONDS: Final = 90.0
"""A step must follow the last fault within this time, if engines start at once."""
_START_SECONDS: Final = 300.0
_DRAIN_SECONDS: Final = 300.0
_REFUSED_SECONDS: Final = 240.0
_REFUSED: Final = f"trainer {ConfigurationError.exit_code}"
_LOOK_EVERY_SECONDS: Final = 0.1
_ASK_EVERY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a campaign. It holds if `problems` is empty."""

    seed: int
    faults: Mapping[str, int]
    seconds: float
    recoveries_seconds: tuple[float, ...]
    steps: int
    groups: int
    samples: Mapping[str, int]
    """By the engine that generated them."""
    trained: int
    dropped: Mapping[str, int]
    ends: Mapping[str, int]
    calls: Mapping[str, int]
    """Of callers, by what became of them."""
    answers: Mapping[str, int]
    """Choices that reached their caller whole, that were rated and may train, and that were trained on."""
    leftovers: Mapping[str, Any]
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Campaign:
    """One campaign. `faults_per_round`: so often the run is left alone until it goes on, for `progress_seconds`."""

    world: World
    seed: int
    groups_per_step: int
    leftovers: Leftovers
    say: Say
    kinds: Mapping[str, int] = field(default_factory=lambda: EVERY_KIND)
    faults_per_round: int = 50
    progress_seconds: float = PROGRESS_SECONDS
    _undos: list[tuple[float, Undo]] = field(default_factory=list)
    _recoveries: list[float] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def run(self, num_faults: int) -> Report:
        """Wait for a first step, make the faults, let the run recover and drain, and add up. Ends every process."""
        began = time.monotonic()
        made: Counter[str] = Counter()
        account = Account.of_ledger(())
        served = self._served(account)
        with self.world.callers.calling(), self.world.fleet.ended(self._problems):
            self._until(lambda: self._num_steps() > 0, _START_SECONDS, "the first step")
            self.say(f"the first step after {time.monotonic() - began:.0f} s")
            for fault in self._made(num_faults):
                made[fault.kind] += 1
                if made.total() % self.faults_per_round == 0 or made.total() == num_faults:
                    self._recover()
            self._settle()
            account = self._drained()
            served = self._served(account)
            served.check()
            self.say(f"drained after {time.monotonic() - began:.0f} s")
            if made["made_anew"]:
                self._refused(account)
        return self._report(account, served, made, time.monotonic() - began)

    def _made(self, num_faults: int) -> Iterator[Fault]:
        """Make the first faults of the seed. One that there is nothing to do to waits for that: no kind is missed."""
        undrawn, waiting = islice(faults(self.seed, self.kinds), num_faults), list[Fault]()
        made, deadline = 0, time.monotonic() + self.progress_seconds
        while made < num_faults:
            waiting += islice(undrawn, 1)
            fault = next((one for one in waiting if self._make(one, made + 1)), None)
            self._pass(self.world.pace.pause_seconds * (fault or waiting[0]).random.uniform(0.5, 1.5))
            if fault is not None:
                waiting.remove(fault)
                made += 1
                yield fault
                deadline = time.monotonic() + self.progress_seconds
            elif time.monotonic() > deadline:
                kinds = ", ".join(sorted({one.kind for one in waiting}))
                raise BrokenWorldError(
                    f"waited {self.progress_seconds:g} s for something to do these faults to: {kinds}"
                )

    def _make(self, fault: Fault, number: int) -> bool:
        """Make one fault; False if there is nothing to do it to now."""
        done = make_fault(self.world, fault)
        if done is None:
            return False
        self.say(f"{number}: {done.what}")
        if done.undo is not None:
            self._undos.append((time.monotonic() + done.undo.seconds, done.undo))
        return True

    def _recover(self) -> None:
        """Wait until every fault is undone, then until a step follows."""
        longest = max(self.world.pace.suspend_seconds, self.world.pace.outage_seconds)
        self._until(lambda: not self._undos, longest + 30.0, "every fault to be undone")
        self.world.cluster.start()
        self._until(self._is_repaired, self.progress_seconds, "the ledger to be repaired")
        began, before = time.monotonic(), self._num_steps()
        self._until(lambda: self._num_steps() > before, self.progress_seconds, f"a step after {before}")
        self._recoveries.append(round(time.monotonic() - began, 1))
        self.say(f"goes on {self._recoveries[-1]} s after the last fault was undone")

    def _settle(self) -> None:
        """Have nobody call any more, and wait until every answer and every rating is where it belongs."""
        self.world.callers.end()
        outside = self.world.outside
        self._until(
            lambda: self._served(outside.account()).is_settled,
            _DRAIN_SECONDS,
            "answers and ratings to be on the topics",
        )

    def _served(self, account: Account) -> ServedAccount:
        callers, outside = self.world.callers, self.world.outside
        rated: defaultdict[tuple[str, int], set[float]] = defaultdict(set)
        for rating in callers.confirmed:
            if rating.key == CONSENTING:
                rated[rating.response_id, rating.choice].add(rating.number)
        texts = {(one.response_id, choice): text for one in callers.answers for choice, text in enumerate(one.texts)}
        return ServedAccount(
            answered=texts,
            rated=rated,
            recorded=outside.records("serve-rollouts"),
            rewarded=outside.records("serve-scored"),
            account=account,
        )

    def _drained(self) -> Account:
        """Submit nothing more, and wait until only groups are open that wait for a full step; the account, checked."""
        self.world.fleet.stop("producer")
        accounts: list[Account] = []

        def is_drained() -> bool:
            accounts[:] = [self.world.outside.account()]
            return not accounts[0].unfinished and accounts[0].num_waiting(ONES_PER_GROUP) < self.groups_per_step

        self._until(is_drained, _DRAIN_SECONDS, "every group to close, so that all credit is back")
        accounts[0].check()
        return accounts[0]

    def _refused(self, account: Account) -> None:
        """Make `scored` anew: the trainer must end, refuse to start, and train on nothing more.

        It comes last, since a run whose checkpoint is of another topic is over.
        """
        fleet = self.world.fleet
        fleet.expect_broken_world(_REFUSED_SECONDS)
        fleet.expect_refusal(_REFUSED_SECONDS, "trainer")
        before = fleet.ends[_REFUSED]
        self.world.make_anew("scored")
        self._until(lambda: fleet.ends[_REFUSED] > before, _REFUSED_SECONDS, "the trainer to refuse another `scored`")
        # A trainer that took over meanwhile may have begun again at its checkpoint: what it cut survives no longer.
        after = replace(account, ledger=self.world.outside.ledger())
        # All that it trained on lies in the old `scored`.
        after.check()
        if after.steps > account.steps:
            raise BrokenWorldError(f"{after.steps} steps survive, {account.steps} did before `scored` was made anew")
        self.say("scored is made anew, and the trainer refuses to start")

    def _num_steps(self) -> int:
        """Optimizer steps ever committed, also those that were cut."""
        return sum(entry["kind"] == "step" for entry in self.world.outside.ledger())

    def _is_repaired(self) -> bool:
        if self.world.is_damaged:
            try:
                self.world.repair()
            except RollstreamError as error:
                self.say(f"the repair failed: {error}")
        return not self.world.is_damaged

    def _pass(self, seconds: float) -> None:
        """Let time pass: stages that ended are started again, faults whose time is over are undone."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()
            time.sleep(_LOOK_EVERY_SECONDS)

    def _tick(self) -> None:
        self.world.fleet.tick()
        now = time.monotonic()
        due = [undo for at, undo in self._undos if at <= now]
        self._undos = [(at, undo) for at, undo in self._undos if at > now]
        for undo in due:
            undo.action()
            self.say(f"   {undo.what}")

    def _until(self, look: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not look():
            if time.monotonic() > deadline:
                raise BrokenWorldError(f"waited {seconds:g} s for {what}; unexpected: {self.world.fleet.unexpected}")
            self._pass(_ASK_EVERY_SECONDS)

    def _report(self, account: Account, served: ServedAccount, made: Counter[str], seconds: float) -> Report:
        left = self.leftovers.found()
        return Report(
            seed=self.seed,
            faults=dict(made),
            seconds=round(seconds, 1),
            recoveries_seconds=tuple(self._recoveries),
            steps=account.steps,
            groups=len(account.prompts),
            samples=dict(account.samples_by_engine),
            trained=account.num_trained,
            dropped=dict(account.dropped),
            ends=dict(self.world.fleet.ends),
            calls=dict(self.world.callers.outcomes),
            answers={"whole": len(served.answered), "rated": len(served.rated), "trained": len(served.trained)},
            leftovers=left.counts,
            problems=(*self._problems, *self.world.callers.problems, *self.world.fleet.unexpected, *left.problems),
        )
