"""`rollstream sft`: train a model on demonstrations of an environment, or on good rollouts (supervised)."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollstream.cli.command_options import options_of
from rollstream.cli.options import made_directory
from rollstream.engines.model_directory import read_config
from rollstream.environments.load import load_environment
from rollstream.process.heap import expect_many_objects
from rollstream.process.logs import configure_logging
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import say
from rollstream.training.sft.settings import SftOptions

if TYPE_CHECKING:
    from rollstream.offline.convert.conversations import RolloutExchanges


@click.command("sft")
@options_of(SftOptions)
def command(options: SftOptions) -> None:
    """Train a model on demonstrations until it sometimes succeeds, or on good rollouts, and write it to a directory.

    The loss counts only the tokens of the answers.
    """
    declared = StageSettings.load(options.config).environments if options.config else {}
    expect_many_objects()
    # Before torch is imported, which takes long.
    if options.environment is not None:
        load_environment(options.environment, declared)
    if options.model is not None:
        read_config(options.model)
    exchanges = None if options.rollouts is None else _exchanges(options.rollouts, options.min_reward)
    from rollstream.local.tiny_model import write_tiny_model
    from rollstream.training.sft.sft import run_sft

    configure_logging("sft")
    made_directory(options.output)
    with tempfile.TemporaryDirectory() as scratch:
        start = options.model or Path(scratch)
        if options.model is None:
            write_tiny_model(start, seed=options.seed)
        report = run_sft(options.settings(start, declared), exchanges)
    for reason, number in report.left_out.items():
        click.echo(f"{number} answers left out: {reason}")
    accuracy = "not checked" if report.accuracy is None else f"{report.accuracy:.3f}"
    click.echo(f"{options.output}: {report.num_steps} steps, loss {report.loss:.3f}, sampled accuracy {accuracy}")


def _exchanges(rollouts: Path, min_reward: float | None) -> "RolloutExchanges":
    from rollstream.offline.convert.conversations import RolloutExchanges

    found = RolloutExchanges(rollouts, min_reward)
    for line in found.tally.lines():
        say(line)
    return found
