"""`rollstream filter-difficulty`: divide the problems of a scored file by how hard they are."""

import click

from rollstream.cli.command_options import options_of
from rollstream.cli.options import json_option
from rollstream.offline.options import DifficultyOptions


@click.command("filter-difficulty")
@options_of(DifficultyOptions)
@json_option
def command(options: DifficultyOptions, as_json: bool) -> None:
    """Divide problems into easy, medium, hard, very_hard and unknown, by the rewards of their samples.

    Writes difficulty_metrics_<strategy>.json and .parquet, rollouts_<bucket>_<strategy> and summary_<strategy>.json.
    Rows without a reward do not count as failures. A run that was killed begins anew: it asks no model.
    """
    from rollstream.offline.difficulty.filtering import filter_difficulty
    from rollstream.offline.difficulty.report import filter_lines, summary_of
    from rollstream.offline.live import rows_shown
    from rollstream.process.terminal import say_all

    try:
        with rows_shown("read", is_shown=not as_json) as on_rows:
            report = filter_difficulty(options, on_rows)
    except KeyboardInterrupt:
        click.echo("stopped: the same command begins anew", err=True)
        raise SystemExit(130) from None
    say_all(summary_of(report, options.data_path.name) if as_json else filter_lines(report))
