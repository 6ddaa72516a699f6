"""`rollstream ingest`: run the server that takes feedback and prompts of clients."""

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
    """Take feedback and prompts over HTTP, and write them to their topics, until asked to stop.

    Settings: the table [ingest] of the run's file, or ROLLSTREAM_… in the environment.
    """

    def main(stop: Stop) -> Coroutine[Any, Any, None]:
        # Imported here: Ctrl-C is an orderly end already.
        from rollstream.ingest.settings import IngestSettings

        settings = IngestSettings.load(config)
        from rollstream.ingest.loop import run_ingest

        return run_ingest(settings, stop)

    run_process("ingest", main)
