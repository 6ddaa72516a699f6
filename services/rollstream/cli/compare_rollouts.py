"""`rollstream compare-rollouts`: what training changed, from two files of rollouts of the same examples."""

from pathlib import Path
from typing import Literal

import click

from rollstream.cli.options import json_option, whole

_FILE = click.Path(exists=True, path_type=Path)


@click.command("compare-rollouts")
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@click.option(
    "--by",
    "match_by",
    type=click.Choice(["auto", "example_id", "prompt"]),
    default="auto",
    show_default=True,
    help="What tells that rows are of the same example. auto: example_id if both files have it, else the prompt.",
)
@click.option("--limit", type=whole(0), default=50, show_default=True, help="Most examples to show.")
@click.option("--output", type=click.Path(path_type=Path), help="Write all examples here: .jsonl or .parquet.")
@json_option
def command(
    before: Path,
    after: Path,
    match_by: Literal["auto", "example_id", "prompt"],
    limit: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare the rewards of two files of rollouts, by example and on average.

    Several rollouts of one example are averaged first. A prompt that comes n times in both files is n examples; the
    samples of one are told by `sample_idx`. Files: JSONL, parquet or a directory of `datasets`.
    """
    from rollstream.offline.compare.comparison import compare
    from rollstream.offline.compare.report import as_json as plain
    from rollstream.offline.compare.report import print_comparison

    found = compare(before, after, match_by=match_by, limit=limit, output=output)
    if as_json:
        from rollstream.views.rendering import json_text

        click.echo(json_text(plain(found)))
        return
    from rich.console import Console

    print_comparison(found, Console())
