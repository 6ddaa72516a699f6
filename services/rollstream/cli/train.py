"""`rollstream train`: SFT, RL, or RL from the newest checkpoint of SFT, as a file says."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from rollstream.process.heap import expect_many_objects
from rollstream.process.logs import configure_logging
from rollstream.process.terminal import say


def _explain(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from rich.console import Console

    from rollstream.training.pipeline.settings import TrainSettings
    from rollstream.views.configuration import keys_in, shown_keys

    Console().print(shown_keys(keys_in(TrainSettings)))
    context.exit()


async def _stopped_by_sigterm(training: Coroutine[Any, Any, Path]) -> None:
    """As Ctrl-C stops it, which asyncio sees to."""
    task = asyncio.ensure_future(training)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


@click.command("train")
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--keys", is_flag=True, is_eager=True, expose_value=False, callback=_explain, help="Explain every key of CONFIG."
)
def command(config: Path) -> None:
    """Train a model by SFT, RL, or both, in one process and without Kafka. CONFIG is a TOML file.

    It names `mode` (sft, rl or sft+rl), `model` and `output`, and has a table [sft], [rl], or both. Ctrl-C or
    SIGTERM writes a checkpoint, and the same command goes on from it.
    """
    from rollstream.training.pipeline.run import run_training
    from rollstream.training.pipeline.settings import TrainSettings

    settings = TrainSettings.read(config)
    configure_logging("train")
    expect_many_objects()
    try:
        asyncio.run(_stopped_by_sigterm(run_training(settings, say)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
