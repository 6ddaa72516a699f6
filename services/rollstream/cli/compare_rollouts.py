"""`rollstream compare-rollouts`: what training changed, from two files of rollouts of the same examples."""

import click

from rollstream.cli.command_options import options_of
from rollstream.cli.options import json_option
from rollstream.offline.options import CompareOptions


@click.command("compare-rollouts")
@options_of(CompareOptions)
@json_option
def command(options: CompareOptions, as_json: bool) -> None:
    """Compare the rewards of two files of rollouts, by example and on average.

    Several rollouts of one example are averaged first. A prompt that comes n times in both files is n examples; the
    samples of one are told by `sample_idx`. Files: JSONL, parquet or a directory of `datasets`.
    """
    from rollstream.offline.compare.comparison import compare
    from rollstream.offline.compare.report import as_json as plain
    from rollstream.offline.compare.report import print_comparison

    found = compare(options)
    if as_json:
        from rollstream.views.rendering import json_text

        click.echo(json_text(plain(found)))
        return
    from rich.console import Console

    print_comparison(found, Console())
