"""`rollstream generator`: run the stage that turns prompts into rollouts."""

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
    """Turn prompts into rollouts with the newest weight version, until asked to stop.

    Settings: the tables [generator] and [generator.engine] of the run's file, or ROLLSTREAM_… in the environment.
    With a rank above 0 in [generator.engine.nodes] it only lends its GPUs to the generator on another machine.
    """

    def main(stop: Stop) -> Coroutine[Any, Any, None] | None:
        # Imported here: Ctrl-C is an orderly end already.
        from rollstream.generator.settings import GeneratorSettings

        settings = GeneratorSettings.load(config)
        if settings.engine.nodes.rank > 0:
            from rollstream.generator.lending import run_lending

            run_lending(settings, stop)
            return None
        from rollstream.generator.loop import run_generator

        return run_generator(settings, stop)

    run_process("generator", main)
