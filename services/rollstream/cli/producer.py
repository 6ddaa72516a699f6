"""`rollstream producer`: run the stage that submits prompts."""

from pathlib import Path

import click

from rollstream.cli.options import config_option
from rollstream.process.entry import run_process
from rollstream.producers.settings import ProducerSettings


@click.command("producer")
@config_option
def command(config: Path | None) -> None:
    """Submit prompts, as many as its credit allows. Ends when its source has no more prompts.

    Settings: the table [producer] of the run's file, or ROLLSTREAM_… in the environment.
    """
    from rollstream.producers.loop import run_producer

    settings = ProducerSettings.load(config)
    run_process("producer", lambda stop: run_producer(settings, stop))
