"""Trainers of a run, started as `rollstream trainer` or with a clock that a test moves."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.harness.forking import run_words, start_command, start_forked
from tests.harness.processes import StartedProcess
from tests.harness.running import Run


def start_trainer(run: Run, *options: str, clock: Path | None = None, **environment: str) -> StartedProcess:
    """Start `rollstream trainer` with the run's settings, or `later_trainer.py`; the caller must end it."""
    log = run.directory / "trainer.log"
    if clock is None:
        return start_command("trainer", "--config", str(run.config), *options, log=log, env=environment)
    return start_forked(partial(_later, run.config, clock), log=log, env=environment)


def _later(config: Path, clock: Path) -> None:
    from tests.harness.later_trainer import main

    main(config, clock)


@contextmanager
def on_a_full_disk(run: Run, *, file_bytes: int) -> Iterator[StartedProcess]:
    """`rollstream trainer` where no file may be larger: its writes fail as those without room on the disk do."""
    trainer = start_forked(partial(_limited, run.config, file_bytes), log=run.directory / "trainer.log")
    try:
        yield trainer
    finally:
        trainer.kill()


def start_doomed(run: Run, *, file_bytes: int, **environment: str) -> StartedProcess:
    """Start `rollstream trainer`, which the kernel kills while it writes its first larger file; the caller must end it.

    Its log must stay smaller, so it has one of its own.
    """
    log = run.directory / "doomed.log"
    log.unlink(missing_ok=True)
    return start_forked(partial(_doomed, run.config, file_bytes), log=log, env=environment)


def _doomed(config: Path, file_bytes: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it: a write would fail instead
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limited(config, file_bytes)


def _limited(config: Path, file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    run_words("trainer", "--config", str(config))
