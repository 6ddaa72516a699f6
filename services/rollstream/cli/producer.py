"""`rollstream producer`: run the stage that submits prompts."""

from pathlib import Path

import click

from rollstream.cli.options import config_option
from rollstream.process.entry import run_process
from rollstream.process.stop import Stop


@click.command("producer")
@config_option
def command(config: Path | None) -> None:
    """Submit prompts, as many as its credit allows. Ends when its source has no more prompts.

    Settings: the table [producer] of the run's file, or ROLLSTREAM_… in the environment.
    """

    def main(stop: Stop) -> None:
        # Imported here: Ctrl-C is an orderly end already.
        from rollstream.producers.loop import run_producer
        from rollstream.producers.settings import ProducerSettings

        run_producer(ProducerSettings.load(config), stop)

    run_process("producer", main)
