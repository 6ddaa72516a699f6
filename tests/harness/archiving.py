"""What tests of the archive run in processes of their own, each of which imports this: so it imports little."""

from pathlib import Path

from rollstream.bus.run import Run
from rollstream.cli.archive import command
from rollstream.collect.archive.archiver import Archiver
from rollstream.collect.archive.follow import identity_of
from rollstream.collect.archive.store import Store
from rollstream.process.settings import StageSettings


def archive_in_small_pieces(config: Path, output: Path) -> None:
    """Make one pass, with few records in a segment."""
    run = Run(StageSettings.load(config))
    with Store.writing(output, identity_of(run)) as store:
        Archiver(run, store, most_records=3).make_pass()


def follow(config: Path, output: Path) -> None:
    """Be `rollstream archive --follow`, with a pass each second."""
    command.main(["--config", str(config), "--output", str(output), "--follow", "--every", "1"])
