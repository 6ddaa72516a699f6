"""`rollstream rc-streams`: an archive's groups in cycles as the files that PipelineRL's Reasoning Cache reads."""

import click

from rollstream.cli.command_options import options_of
from rollstream.process.settings.base import StageSettings
from rollstream.rc_actor.export_options import StreamExportOptions


@click.command("rc-streams")
@options_of(StreamExportOptions)
def command(options: StreamExportOptions) -> None:
    """Write the groups of the archive DIRECTORY that reasoned in cycles, one a line, as `rc-actor` writes them."""
    from rollstream.rc_actor.export import export_streams

    report = export_streams(options, StageSettings.load(options.config).storage if options.config else None)
    click.echo(f"{options.output_dir}: {report.num_groups} groups with {report.num_texts} texts")
    for gap in report.gaps:
        click.echo(f"  not in the archive: {gap}")
    for why, count in report.left_out.most_common():
        click.echo(f"  left out: {count} x {why}")
