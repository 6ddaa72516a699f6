"""`rollstream trainer`: run the stage that trains and publishes weight versions."""

from pathlib import Path

import click

from rollstream.cli.options import config_option
from rollstream.process.entry import run_process
from rollstream.process.stop import Stop


@click.command("trainer")
@config_option
@click.option("--accept-loss", is_flag=True, help="Start although records expired unread. Their groups close.")
def command(config: Path | None, accept_loss: bool) -> None:
    """Train on scored groups and publish weight versions. Ends after `num_steps` optimizer steps.

    Settings: the table [trainer] of the run's file, or ROLLSTREAM_… in the environment.
    """

    def main(stop: Stop) -> None:
        # Imported here: Ctrl-C is an orderly end already.
        from rollstream.trainer.settings import TrainerSettings
        from rollstream.trainer.start import run_trainer

        settings = TrainerSettings.load(config)
        run_trainer(settings.model_copy(update={"accept_loss": settings.accept_loss or accept_loss}), stop)

    run_process("trainer", main)
