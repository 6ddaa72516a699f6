"""`rollstream scorer`: run the stage that gives rollouts their rewards."""

from pathlib import Path

import click

from rollstream.cli.options import config_option


@click.command()
@config_option
def command(config: Path | None) -> None:
    """Give rollouts their rewards, until asked to stop.

    Settings: the table [scorer] of the run's file, or ROLLSTREAM_… in the environment.
    """
    from rollstream.process.entry import run_process
    from rollstream.scorer.loop import run_scorer
    from rollstream.scorer.settings import ScorerSettings

    run_process("scorer", lambda stop: run_scorer(ScorerSettings.load(config), stop))
