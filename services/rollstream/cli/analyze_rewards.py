"""`rollstream analyze-rewards`: give the rollouts of a file their rewards, in a new file beside it."""

from pathlib import Path
from typing import Any

import click

from rollstream.cli.options import FiniteRange, json_option
from rollstream.schemas.errors import ConfigurationError


@click.command("analyze-rewards")
@click.option("--rollouts", type=click.Path(path_type=Path), required=True, help="File that generate-rollouts wrote.")
@click.option(
    "--reward_fn",
    type=click.Choice(["auto", "ifeval", "math", "custom"]),
    default="auto",
    show_default=True,
    help="auto: by each row's data source; custom: your own, whose path follows.",
)
@click.argument("path", required=False, metavar="[PACKAGE.MODULE.FUNCTION]")
@click.option("--output", type=click.Path(path_type=Path), help="Default: NAME_with_rewards beside the rollouts.")
@click.option("--name", help="Column of the rewards is reward_NAME; default: the reward function's.")
@click.option("--data_source", help="Data source of all rows, instead of their own column.")
@click.option(
    "--pass_threshold", type=FiniteRange(-1e9, 1e9), help="Smallest reward that passes; default: the function's own."
)
@click.option("--sandbox_url", help="Service that runs the programs of code data sets; without it they are not scored.")
@click.option("--num_processes", type=click.IntRange(1, 64), help="Processes that score; default: one a core.")
@click.option(
    "--sample_seconds",
    type=FiniteRange(0, min_open=True),
    help="A row whose scoring takes longer has no reward; default: 10, with a sandbox 60.",
)
@json_option
def command(rollouts: Path, output: Path | None, as_json: bool, **options: Any) -> None:
    """Score each rollout of a file, and write the file with its rewards; the rollouts themselves stay as they are.

    Columns: reward, reward_<function> (of earlier runs too), reward_normalized (0 to 1), passed, reward_failure. A row
    without a reward says there why; it never counts as 0. Other columns of an output that is there already are kept;
    a reward that another program wrote there becomes reward_before.

    A run that was stopped goes on where it was when the same command is run again.
    """
    from rollstream.offline.scores.progress import rows_shown
    from rollstream.offline.scores.request import scores_request
    from rollstream.offline.scores.run import score_rollouts
    from rollstream.offline.scores.text import say, score_lines, scores_plain, stopped_line

    request = scores_request(rollouts, output, **options)
    try:
        with rows_shown("scored", is_shown=not as_json) as on_rows:
            report = score_rollouts(request, on_rows)
    except KeyboardInterrupt:
        click.echo(stopped_line(request.output), err=True)
        raise SystemExit(130) from None
    say(scores_plain(report) if as_json else score_lines(report))
    if not report.num_scored:
        stays = "stays as it was" if report.output.exists() else "was not written"
        raise ConfigurationError(
            f"none of {report.num_rows} rows was scored, so {report.output} {stays}; the reasons are above"
        )
