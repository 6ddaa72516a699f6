"""The whole loop as real processes: four stages of a run, started again when they die, watched by an outside client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from rollstream.local.keep_alive import Backoff, KeptAlive, StageState
from tests.chaos.accounting import Account, OutsideClient
from tests.harness.processes import StartedProcess
from tests.harness.running import Run
from tests.harness.waits import wait_until

T = TypeVar("T")

GROUP_SIZE = 4
GROUPS_PER_STEP = 4
MAX_POLICY_LAG = 4
SHARE = (MAX_POLICY_LAG + 1) * GROUPS_PER_STEP
STAGES = ("trainer", "generator", "scorer", "producer")

_WAIT_SECONDS = 120.0
_LOOK_EVERY_SECONDS = 0.5
_AT_ONCE = Backoff(first_seconds=0.0)
_NEVER_RIGHT = (StageState.FENCED, StageState.MISCONFIGURED)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A run whose stages are started again when they die."""

    run: Run
    outside: OutsideClient
    stages: dict[str, KeptAlive[StartedProcess]] = field(default_factory=dict)

    def start(self, *stages: str, name: str = "") -> None:
        """Start stages (default: all four); `name` tells a second process of a stage from the first."""
        for stage in stages or STAGES:
            env = {f"ROLLSTREAM_{stage.upper()}_ID": name} if name else {}
            self.keep_alive(name or stage, partial(self.run.start, stage, **env))

    def keep_alive(self, name: str, start: Callable[[], StartedProcess]) -> None:
        """Start a process, and start it again whenever it dies."""
        self.stages[name] = KeptAlive(start=start, backoff=_AT_ONCE)

    def stop(self, stage: str) -> None:
        """SIGTERM; it must end in order. It is not started again."""
        assert self.stages.pop(stage).process.terminate() == 0

    def configure(self, stage: str, **settings: object) -> None:
        """Change settings of the stages that start from now on."""
        self.run.tables[stage] = {**self.run.tables.get(stage, {}), **settings}

    def until(self, look: Callable[[], T], what: str, seconds: float = _WAIT_SECONDS) -> T:
        """Look until the answer is true; meanwhile stages that died are started again."""

        def look_after_all_and_look() -> T:
            for stage in self.stages.values():
                stage.look()
                assert stage.state not in _NEVER_RIGHT, stage.process.said()[-3000:]
            return look()

        return wait_until(
            look_after_all_and_look, lambda: f"{what}; {self.stages}", seconds, every_seconds=_LOOK_EVERY_SECONDS
        )

    def until_step(self, step: int) -> None:
        """Wait for a surviving optimizer step."""
        self.until(lambda: self.outside.steps() >= step, f"step {step}")

    def until_account(self, is_true: Callable[[Account], object], what: str) -> Account:
        """Wait until the account fulfils a condition; returns it, checked."""

        def look() -> Account | None:
            account = self.outside.account()
            return account if is_true(account) else None

        account = self.until(look, what)
        assert account is not None
        account.check()
        return account

    def end(self) -> Account:
        """End trainer and producer; once no stage has work left, the account, checked for losses."""
        self.stop("trainer")
        self.stop("producer")
        return self.until_account(lambda account: not account.unfinished, "every open group to be scored")


@contextmanager
def a_loop(run: Run, model: Path, *, correct_ratio: float = 0.5, token_seconds: float = 0.1) -> Iterator[Loop]:
    """A loop on `sort_digits`, not started yet: scripted answers in the vocabulary of the trainer's tiny model."""
    scripted = {"correct_ratio": correct_ratio, "token_seconds": token_seconds}
    run.shared |= {"groups_per_step": GROUPS_PER_STEP, "max_policy_lag": MAX_POLICY_LAG}
    run.tables |= {
        "producer": {
            "environment": "sort_digits",
            "group_size": GROUP_SIZE,
            "sampling": {"temperature": 1.0, "max_tokens": 12},
        },
        "generator.engine": {"kind": "scripted", "model_path": model, "max_model_len": 32, "scripted": scripted},
        # A killed scorer's partitions wait for the end of its session.
        "scorer": {"session_timeout_seconds": 10.0, "batch_deadline_seconds": 9.0, "load_deadline_seconds": 8.0},
        "trainer": {
            "model_path": model,
            "checkpoints": run.directory / "checkpoints",
            "checkpoint_every": 4,
            "learning": {"learning_rate": 0.001, "threads": 1},
        },
    }
    loop = Loop(run=run, outside=OutsideClient(run.kafka.bootstrap_servers, run.name))
    try:
        yield loop
    finally:
        for stage in loop.stages.values():
            stage.process.kill()
