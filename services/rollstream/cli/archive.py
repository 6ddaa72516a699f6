"""`rollstream archive`: write a run's rollouts, rewards, fates and steps to parquet files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollstream.cli.options import FiniteRange, connected, settings_option
from rollstream.process.settings.base import StageSettings

if TYPE_CHECKING:
    from rollstream.archive.archiver import Report


@click.command()
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="The archive.")
@click.option("--follow/--once", default=False, help="Go on until SIGTERM or Ctrl-C. Default: one pass.")
@click.option(
    "--every", type=FiniteRange(1, 86400), default=300.0, show_default=True, help="Seconds between passes of --follow."
)
@click.option("--accept-loss", is_flag=True, help="Go on although records were deleted before they were archived.")
@settings_option
def command(output: Path, follow: bool, every: float, accept_loss: bool, settings: StageSettings) -> None:
    """Write a run's topics to parquet files: rollouts by day and step, and tables of groups, steps and prompts.

    Goes on where the last call ended, also after kill -9. One call at a time writes to an archive.
    """
    from rollstream.archive.follow import archive
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop

    stop = Stop()
    if follow:
        ask_on_signal(stop)
    archive(
        connected(settings),
        output,
        lambda report: click.echo(f"{output}: {_line(report)}"),
        every_seconds=every if follow else None,
        accept_loss=accept_loss,
        stop=stop,
    )


def _line(report: "Report") -> str:
    return (
        f"{report.num_rollouts} rollouts, {report.num_entries} ledger entries, {report.num_prompts} prompts, "
        f"{report.num_unreadable} unreadable records, {report.num_open_groups} open groups; "
        f"{report.num_rewritten} segments written again"
    )
