"""The trainer with a clock that a test moves: a file of seconds to add."""

import time
from pathlib import Path

from rollstream.process.entry import run_process
from rollstream.trainer.settings import TrainerSettings
from rollstream.trainer.start import run_trainer

HOUR = 3600.0


def move_clock(clock: Path, seconds: float) -> None:
    """Set the trainer's clock forward by so many seconds, from now on."""
    # Renamed when it is complete: the trainer reads the file at any moment.
    written = clock.with_suffix(".new")
    written.write_text(str(seconds))
    written.rename(clock)


def main(config: Path, clock: Path) -> None:
    """The process."""
    settings = TrainerSettings.load(config)
    run_process(
        "trainer",
        lambda stop: run_trainer(settings, stop, clock=lambda: time.monotonic() + float(clock.read_text())),
    )
