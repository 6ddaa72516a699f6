"""`rollstream generator`: run the stage that turns prompts into rollouts."""

from pathlib import Path

import click

from rollstream.cli.options import config_option


@click.command()
@config_option
def command(config: Path | None) -> None:
    """Turn prompts into rollouts with the newest weight version, until asked to stop.

    Settings: the tables [generator] and [generator.engine] of the run's file, or ROLLSTREAM_… in the environment.
    """
    from rollstream.generator.loop import run_generator
    from rollstream.generator.settings import GeneratorSettings
    from rollstream.process.entry import run_process

    run_process("generator", lambda stop: run_generator(GeneratorSettings.load(config), stop))
