"""`rollstream scorer`: run the stage that gives rollouts their rewards."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from rollstream.cli.options import config_option
from rollstream.process.entry import run_process
from rollstream.process.stop import Stop


@click.command()
@config_option
def command(config: Path | None) -> None:
    """Give rollouts their rewards, until asked to stop.

    Settings: the table [scorer] of the run's file, or ROLLSTREAM_… in the environment.
    """

    def main(stop: Stop) -> Coroutine[Any, Any, None]:
        # Imported here: Ctrl-C is an orderly end already.
        from rollstream.scorer.loop import run_scorer
        from rollstream.scorer.settings import ScorerSettings

        return run_scorer(ScorerSettings.load(config), stop)

    run_process("scorer", main)
