"""Trainers that share one import of torch: each is a fork of a server that has done it."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.harness.processes import StartedProcess, fork_process
from tests.harness.running import Run


def start_trainer(run: Run, *options: str, clock: Path | None = None, **environment: str) -> StartedProcess:
    """Start `rollstream trainer` with the run's settings, or `later_trainer.py`; the caller sees to its end."""
    main = partial(_rollstream_trainer, run.config, options) if clock is None else partial(_later, run.config, clock)
    return fork_process(main, log=run.directory / "trainer.log", env=environment)


def _rollstream_trainer(config: Path, options: Sequence[str]) -> None:
    from rollstream.cli.main import main

    sys.argv = ["rollstream", "trainer", "--config", str(config), *options]
    main()


def _later(config: Path, clock: Path) -> None:
    from tests.harness.later_trainer import main

    main(config, clock)
