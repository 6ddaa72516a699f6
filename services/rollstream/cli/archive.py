"""`rollstream archive`: write a run's rollouts, rewards, outcomes and steps to parquet files."""

from typing import TYPE_CHECKING

import click

from rollstream.archive.options import ArchiveOptions
from rollstream.cli.command_options import options_of
from rollstream.cli.options import connected, settings_option
from rollstream.process.settings.base import StageSettings

if TYPE_CHECKING:
    from rollstream.archive.archiver import PassReport


@click.command()
@options_of(ArchiveOptions)
@settings_option
def command(options: ArchiveOptions, settings: StageSettings) -> None:
    """Append a run's topics to parquet files: rollouts, prompts, steps, and what became of each group.

    Goes on where the last call ended, also after kill -9. One call at a time writes to an archive. --follow writes
    files when 1000 records of a partition wait, or after 12 looks.
    """
    from rollstream.archive.archiver import archive
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    stop = Stop()
    if options.follow:
        ask_on_signal(stop)

    def told(report: "PassReport") -> None:
        click.echo(f"{options.output}: {_line(report)}")

    archive(connected(settings), options, told, storage=settings.storage, stop=stop)


def _line(report: "PassReport") -> str:
    return (
        f"added {report.num_rollouts} rollouts, {report.num_entries} ledger entries, {report.num_prompts} prompts and "
        f"{report.num_unreadable} unreadable records in {report.num_files} files"
    )
