"""Trainers as real processes that share one import of torch: a fork server imports it, each trainer is a fork of it."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from tests.harness.running import DEADLINE_SECONDS, Run

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "rollstream.trainer.learning.backends.single_device",
        "rollstream.trainer.start",
        "transformers.models.qwen3.modeling_qwen3",
    ]
)


@dataclass
class TrainerProcess:
    """One `rollstream trainer`."""

    process: ForkServerProcess
    log: Path

    @property
    def is_stopped(self) -> bool:
        """Whether a SIGSTOP took effect."""
        return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code, minus the signal's number if one killed it."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"still runs after {seconds} s; log:\n{self.log.read_text()[-3000:]}"
        return code

    def kill(self) -> None:
        """kill -9, also of a stopped one."""
        self.process.kill()
        self.process.join(10)


def start_trainer(run: Run, *options: str, clock: Path | None = None, **environment: str) -> TrainerProcess:
    """Start `rollstream trainer` with the run's settings, or `later_trainer.py`; the caller sees to its end."""
    log = run.directory / "trainer.log"
    main = partial(_rollstream_trainer, run.config, options) if clock is None else partial(_later, run.config, clock)
    process = _CONTEXT.Process(target=_logged, args=(log, main, environment), daemon=True)
    process.start()
    return TrainerProcess(process=process, log=log)


def _logged(log: Path, main: Callable[[], None], environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    main()


def _rollstream_trainer(config: Path, options: Sequence[str]) -> None:
    from rollstream.cli.main import main

    sys.argv = ["rollstream", "trainer", "--config", str(config), *options]
    main()


def _later(config: Path, clock: Path) -> None:
    from tests.harness.later_trainer import main

    main(config, clock)
