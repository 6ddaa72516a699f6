"""`rollstream archive`: write a run's rollouts, rewards, outcomes and steps to parquet files."""

from typing import TYPE_CHECKING

import click

from rollstream.cli.options import FiniteRange, LocationType, connected, settings_option
from rollstream.process.settings.base import StageSettings

if TYPE_CHECKING:
    from rollstream.archive.archiver import PassReport


@click.command()
@click.option(
    "--output", type=LocationType(), required=True, help="The archive: a directory, s3://…, gs://… or az://…."
)
@click.option("--follow/--once", default=False, help="Go on until SIGTERM or Ctrl-C. Default: one pass.")
@click.option(
    "--every", type=FiniteRange(1, 86400), default=300.0, show_default=True, help="Seconds between looks of --follow."
)
@click.option("--accept-loss", is_flag=True, help="Go on although records were deleted before they were archived.")
@settings_option
def command(output: str, follow: bool, every: float, accept_loss: bool, settings: StageSettings) -> None:
    """Append a run's topics to parquet files: rollouts, prompts, steps, and what became of each group.

    Goes on where the last call ended, also after kill -9. One call at a time writes to an archive. --follow writes
    files when 1000 records of a partition wait, or after 12 looks.
    """
    from rollstream.archive.archiver import archive
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    stop = Stop()
    if follow:
        ask_on_signal(stop)
    archive(
        connected(settings),
        output,
        lambda report: click.echo(f"{output}: {_line(report)}"),
        storage=settings.storage,
        every_seconds=every if follow else None,
        accept_loss=accept_loss,
        stop=stop,
    )


def _line(report: "PassReport") -> str:
    return (
        f"added {report.num_rollouts} rollouts, {report.num_entries} ledger entries, {report.num_prompts} prompts and "
        f"{report.num_unreadable} unreadable records in {report.num_files} files"
    )
