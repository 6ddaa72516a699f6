"""Trainers of a run, started as `rollstream trainer` or with a clock that a test moves: a file of seconds to add."""

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.harness.forking import run_words, start_command, start_forked
from tests.harness.processes import StartedProcess
from tests.harness.running import Run

HOUR = 3600.0


def start_trainer(run: Run, *options: str, clock: Path | None = None, **environment: str) -> StartedProcess:
    """Start `rollstream trainer` with the run's settings, or one with this clock; the caller must end it."""
    log = run.directory / "trainer.log"
    if clock is None:
        return start_command("trainer", "--config", str(run.config), *options, log=log, env=environment)
    return start_forked(partial(_later, run.config, clock), log=log, env=environment)


def move_clock(clock: Path, seconds: float) -> None:
    """Set the trainer's clock forward by so many seconds, from now on."""
    # Renamed when it is complete: the trainer reads the file at any moment.
    written = clock.with_suffix(".new")
    written.write_text(str(seconds))
    written.rename(clock)


def _later(config: Path, clock: Path) -> None:
    from rollstream.process.entry import run_process
    from rollstream.trainer.settings import TrainerSettings
    from rollstream.trainer.start import run_trainer

    settings = TrainerSettings.load(config)
    run_process(
        "trainer",
        lambda stop: run_trainer(settings, stop, clock=lambda: time.monotonic() + float(clock.read_text())),
    )


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
