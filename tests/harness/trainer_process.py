"""Trainer processes that start fast: each is forked from a server process that has imported torch already."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.harness.processes import StartedProcess
from tests.harness.running import Run

_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(
    [
        "rollstream.trainer.learning.backends.single_device",
        "rollstream.trainer.start",
        "transformers.models.qwen3.modeling_qwen3",
    ]
)


def start_trainer(run: Run, *options: str, clock: Path | None = None, **environment: str) -> StartedProcess:
    """Start `rollstream trainer` with the run's settings, or `later_trainer.py`; the caller must end it."""
    main = partial(_rollstream_trainer, run.config, options) if clock is None else partial(_later, run.config, clock)
    log = run.directory / "trainer.log"
    process = _FORK_SERVER.Process(target=_logged, args=(log, main, environment), daemon=True)
    process.start()
    assert process.pid is not None
    return StartedProcess(pid=process.pid, exit_code=lambda: process.exitcode, log=log)


def _rollstream_trainer(config: Path, options: Sequence[str]) -> None:
    from rollstream.cli.main import main

    sys.argv = ["rollstream", "trainer", "--config", str(config), *options]
    main()


def _later(config: Path, clock: Path) -> None:
    from tests.harness.later_trainer import main

    main(config, clock)


def _logged(log: Path, main: Callable[[], None], env: Mapping[str, str]) -> None:
    os.environ.update(env)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    main()
