"""`rollstream analyze-rewards`: give the rollouts of a file their rewards, in a new file beside it."""

import click

from rollstream.cli.command_options import options_of
from rollstream.cli.options import json_option
from rollstream.offline.options import ScoresOptions
from rollstream.schemas.errors import ConfigurationError


@click.command("analyze-rewards")
@options_of(ScoresOptions)
@json_option
def command(options: ScoresOptions, as_json: bool) -> None:
    """Score each rollout of a file, and write the file with its rewards; the rollouts themselves stay as they are.

    Columns: reward, reward_<function> (of earlier runs too), reward_normalized (0 to 1), passed, reward_failure. A row
    without a reward says there why; it never counts as 0. Other columns of an output that is there already are kept;
    a reward that another program wrote there becomes reward_before.

    A run that was stopped goes on where it was when the same command is run again.
    """
    from rollstream.offline.live import rows_shown
    from rollstream.offline.scores.request import scores_request
    from rollstream.offline.scores.run import score_rollouts
    from rollstream.offline.scores.text import score_lines, scores_plain, stopped_line
    from rollstream.process.terminal import say_all

    request = scores_request(options)
    try:
        with rows_shown("scored", is_shown=not as_json) as on_rows:
            report = score_rollouts(request, on_rows)
    except KeyboardInterrupt:
        click.echo(stopped_line(request.output), err=True)
        raise SystemExit(130) from None
    say_all(scores_plain(report) if as_json else score_lines(report))
    if not report.num_scored:
        stays = "stays as it was" if report.output.exists() else "was not written"
        raise ConfigurationError(
            f"none of {report.num_rows} rows was scored, so {report.output} {stays}; the reasons are above"
        )
