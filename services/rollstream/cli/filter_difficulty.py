"""`rollstream filter-difficulty`: divide the problems of a scored file by how hard they are."""

from pathlib import Path
from typing import Any

import click

from rollstream.cli.options import FiniteRange, json_option, whole


@click.command("filter-difficulty")
@click.option("--data_path", type=click.Path(path_type=Path), required=True, help="File that analyze-rewards wrote.")
@click.option(
    "--bucketing_strategy",
    type=click.Choice(["percentile", "pass_rate", "mean_reward", "adaptive"]),
    default="percentile",
    show_default=True,
    help="percentile: quarters by score; adaptive: four clusters of the score.",
)
@click.option("--output_dir", type=click.Path(file_okay=False, path_type=Path), help="Default: where the data is.")
@click.option(
    "--percentiles", nargs=3, type=float, default=(25, 50, 75), show_default=True, help="Where buckets end, %."
)
@click.option(
    "--pass_rate_thresholds", nargs=3, type=float, default=(80, 50, 20), show_default=True,
    help="From which pass rate on, in %, a problem is easy, medium, hard.",
)  # fmt: skip
@click.option(
    "--mean_reward_thresholds", nargs=3, type=float, default=(0.75, 0.5, 0.25), show_default=True,
    help="From which mean reward on, 0 to 1, a problem is easy, medium, hard.",
)  # fmt: skip
@click.option(
    "--pass_threshold", type=FiniteRange(-1e9, 1e9), help="Smallest reward that passes; default: each source's own."
)
@click.option("--min_samples", type=whole(1), default=2, show_default=True, help="With fewer a problem is `unknown`.")
@click.option("--id_column", help="Column that says which problem a row is of; default: its prompt, hashed.")
@json_option
def command(data_path: Path, output_dir: Path | None, as_json: bool, **options: Any) -> None:
    """Divide problems into easy, medium, hard, very_hard and unknown, by the rewards of their samples.

    Writes difficulty_metrics_<strategy>.json and .parquet, rollouts_<bucket>_<strategy> and summary_<strategy>.json.
    Rows without a reward do not count as failures. A run that was killed begins anew: it asks no model.
    """
    from rollstream.offline.difficulty.filtering import filter_difficulty, filter_request
    from rollstream.offline.difficulty.report import filter_lines, summary_of
    from rollstream.offline.scores.progress import rows_shown
    from rollstream.offline.scores.text import say

    request = filter_request(data_path, output_dir or data_path.parent, **options)
    try:
        with rows_shown("read", is_shown=not as_json) as on_rows:
            report = filter_difficulty(request, on_rows)
    except KeyboardInterrupt:
        click.echo("stopped: the same command begins anew", err=True)
        raise SystemExit(130) from None
    say(summary_of(report, data_path.name) if as_json else filter_lines(report))
