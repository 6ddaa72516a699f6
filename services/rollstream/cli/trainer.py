"""`rollstream trainer`: run the stage that trains and publishes weight versions."""

from pathlib import Path

import click

from rollstream.cli.options import config_option
from rollstream.process.entry import run_process
from rollstream.trainer.settings import TrainerSettings


@click.command("trainer")
@config_option
@click.option("--accept-loss", is_flag=True, help="Start although records expired unread. Their groups close.")
def command(config: Path | None, accept_loss: bool) -> None:
    """Train on scored groups and publish weight versions. Ends after `num_steps` optimizer steps.

    Settings: the table [trainer] of the run's file, or ROLLSTREAM_… in the environment.
    """
    from rollstream.trainer.start import run_trainer

    settings = TrainerSettings.load(config)
    if accept_loss:
        settings = settings.model_copy(update={"accept_loss": True})
    run_process("trainer", lambda stop: run_trainer(settings, stop))
