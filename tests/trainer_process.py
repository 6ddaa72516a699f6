"""Trainers as real processes that share one import of torch: a fork server imports it, each trainer is a fork of it."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.running import DEADLINE_SECONDS, Run

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "rollstream.trainer.backends.single_device",
        "rollstream.trainer.start",
        "transformers.models.qwen3.modeling_qwen3",
    ]
)


@dataclass
class TrainerProcess:
    """One `rollstream trainer`."""

    process: ForkServerProcess
    log: Path

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


def start_trainer(run: Run, *options: str, **environment: str) -> TrainerProcess:
    """Start `rollstream trainer` with the run's settings; the caller sees to its end."""
    log = run.directory / "trainer.log"
    process = _CONTEXT.Process(target=_rollstream_trainer, args=(run.config, log, options, environment), daemon=True)
    process.start()
    return TrainerProcess(process=process, log=log)


def _rollstream_trainer(config: Path, log: Path, options: Sequence[str], environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    from rollstream.cli.main import main

    sys.argv = ["rollstream", "trainer", "--config", str(config), *options]
    main()
