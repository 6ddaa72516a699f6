"""The whole loop as real processes: four supervised stages of a run, watched by an outside client."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rollstream.local.supervisor import Backoff, StageState, Supervisor, stage_process
from tests.harness.accounting import Account, OutsideClient
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
_NEVER_RIGHT = (StageState.MISCONFIGURED, StageState.FENCED)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A run whose stages are kept alive by the product's own supervisor."""

    run: Run
    supervisor: Supervisor
    outside: OutsideClient

    def start(self, *stages: str, name: str = "") -> None:
        """Start stages (default: all four); `name` tells a second process of a stage from the first."""
        for stage in stages or STAGES:
            env = {f"ROLLSTREAM_{stage.upper()}_ID": name} if name else {}
            self.supervisor.start(stage_process(stage, self.run.config, name=name, env=env))

    def configure(self, stage: str, **settings: object) -> None:
        """Change settings of the stages that start from now on."""
        self.run.tables[stage] = {**self.run.tables[stage], **settings}

    def until(self, look: Callable[[], T], what: str, seconds: float = _WAIT_SECONDS) -> T:
        """Look until the answer is true; meanwhile the supervisor restarts stages that died."""

        def tick_and_look() -> T:
            self.supervisor.tick()
            for status in self.supervisor.statuses():
                assert status.state not in _NEVER_RIGHT, f"{status.name}: {status.log.read_text()[-3000:]}"
            return look()

        def what_and_how_it_is() -> str:
            return f"{what}; {self.supervisor.statuses()}"

        return wait_until(tick_and_look, what_and_how_it_is, seconds, every_seconds=_LOOK_EVERY_SECONDS)

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

    def kill(self, stage: str) -> None:
        """kill -9; the supervisor starts it again. Returns when two more steps show that the loop goes on."""
        before = self.outside.steps()
        self.supervisor.kill(stage)
        self.until(lambda: self.supervisor.status(stage).restarts, f"the {stage} to be started again")
        self.until_step(before + 2)

    def finish(self, num_steps: int) -> Account:
        """Wait until the trainer is done and no stage has work left; returns the account, checked for losses."""
        trainer = "trainer"
        self.until(lambda: self.supervisor.status(trainer).state is StageState.FINISHED, "the trainer's exit 0")
        self.supervisor.stop("producer")
        account = self.until_account(lambda account: not account.unfinished, "every open group to be scored")
        assert account.steps == num_steps
        return account

    def replay_dead_letters(self) -> str:
        """`rollstream dead-letters replay --all`."""
        command = [sys.executable, "-m", "rollstream.cli.main", "dead-letters", "replay", "--all"]
        ended = subprocess.run(
            [*command, "--config", str(self.run.config)], capture_output=True, text=True, timeout=60, check=True
        )
        return ended.stdout


@contextmanager
def a_loop(
    run: Run, model: Path, *, num_steps: int = 0, correct_ratio: float = 0.5, token_seconds: float = 0.1
) -> Iterator[Loop]:
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
            "num_steps": num_steps,
            "checkpoint_every": 4,
            "learning": {"learning_rate": 0.001, "threads": 1},
        },
    }
    outside = OutsideClient(run.kafka.bootstrap_servers, run.name)
    with Supervisor(run.directory, backoff=Backoff(first_seconds=0.2, longest_seconds=2.0)) as supervisor:
        yield Loop(run=run, supervisor=supervisor, outside=outside)
