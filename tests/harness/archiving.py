"""What tests of the archive run in processes of their own, each of which imports this: so it imports little."""

from pathlib import Path

from rollstream.archive.archiver import Archiver, Bounds
from rollstream.archive.reading import identity_of
from rollstream.archive.store import Store
from rollstream.bus.run import Run
from rollstream.cli.archive import command
from rollstream.process.entry import ask_on_signal
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop

SMALL = Bounds(records=3, remembered_entries=2)


def archive_in_small_pieces(config: Path, output: Path) -> None:
    """Make one pass, with few records in a segment, and few entries of the ledger remembered."""
    run = Run(StageSettings.load(config))
    with Store.writing(output, identity_of(run)) as store:
        Archiver(run, store, bounds=SMALL).make_pass()


def archive_until_stopped(config: Path, output: Path) -> None:
    """Make pass after pass without a pause, until SIGTERM."""
    run, stop = Run(StageSettings.load(config)), Stop()
    ask_on_signal(stop)
    with Store.writing(output, identity_of(run)) as store:
        archiver = Archiver(run, store, bounds=SMALL)
        while not stop.is_asked:
            archiver.make_pass()


def follow(config: Path, output: Path) -> None:
    """Be `rollstream archive --follow`, with a pass each second."""
    command.main(["--config", str(config), "--output", str(output), "--follow", "--every", "1"])
