"""`rollstream replay`: read an archive back as rollouts, to score them again or to train on them."""

import click

from rollstream.archive.options import ReplayOptions
from rollstream.cli.command_options import options_of
from rollstream.process.settings.base import StageSettings


@click.command()
@options_of(ReplayOptions)
def command(options: ReplayOptions) -> None:
    """Write the rollouts of the archive DIRECTORY as rows, one for each. Nothing is asked of a broker.

    With --environment, --min-reward means the new reward.
    """
    from rollstream.archive.replay import replay

    settings = StageSettings.load(options.config) if options.config else None
    report = replay(options, settings.environments if settings else None, settings.storage if settings else None)
    click.echo(f"{options.output}: {report.num_written} rows of {report.num_records} records")
    for gap in report.gaps:
        click.echo(f"  not in the archive: {gap}")
    for why, count in report.unscored.most_common():
        click.echo(f"  not scored: {count} {why}")
    for why, count in report.left_out.most_common():
        click.echo(f"  left out: {count} {why}")
