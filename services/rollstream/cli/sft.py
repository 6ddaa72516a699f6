"""`rollstream sft`: train a model on demonstrations of an environment, or on good rollouts (supervised)."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollstream.cli.options import FiniteRange, made_directory, whole
from rollstream.engines.model_directory import read_config
from rollstream.environments.load import load_environment
from rollstream.process.heap import expect_many_objects
from rollstream.process.logs import configure_logging
from rollstream.process.settings.base import RUN_FILE, StageSettings
from rollstream.process.terminal import escaped

if TYPE_CHECKING:
    from rollstream.offline.convert.conversations import RolloutExchanges
    from rollstream.process.settings.declared import Declarations


@click.command("sft")
@click.option("--model", type=click.Path(path_type=Path), help="Model directory to start from.")
@click.option("--tiny-model", is_flag=True, help="Start from a new tiny model with random weights (1 M parameters).")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Model directory to write.")
@click.option("--environment", help="Environment with demonstrations; with --rollouts, what measures the accuracy.")
@click.option(
    "--rollouts",
    type=click.Path(exists=True, path_type=Path),
    help="Train on the answers of rollouts instead: JSONL, parquet or a directory of `datasets`.",
)
@click.option("--min-reward", type=FiniteRange(), help="Least reward of a rollout; default: any, but it must have one.")
@click.option("--epochs", type=whole(1), help="Passes over the rollouts; default: until --max-steps.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A run's {RUN_FILE}, where environments of your own are declared; without it there are the built-in ones.",
)
@click.option(
    "--until-accuracy",
    type=FiniteRange(0, 1),
    help="Stop at this accuracy of sampled answers to validation tasks.",
)
@click.option("--max-steps", type=whole(1), default=1000, show_default=True, help="Stop after this many steps.")
@click.option("--batch-size", type=whole(1), default=64, show_default=True, help="Demonstrations per step.")
@click.option(
    "--learning-rate",
    type=FiniteRange(0, min_open=True),
    default=1e-3,
    show_default=True,
    help="AdamW, constant after warm-up.",
)
@click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads; default: torch's own choice.")
@click.option("--seed", type=whole(0), default=0, show_default=True, help="For weights, order and sampling.")
def command(  # one parameter an option
    model: Path | None,
    tiny_model: bool,
    output: Path,
    environment: str | None,
    rollouts: Path | None,
    min_reward: float | None,
    config: Path | None,
    **settings: float | None,
) -> None:
    """Train a model on demonstrations until it sometimes succeeds, or on good rollouts, and write it to a directory.

    The loss counts only the tokens of the answers.
    """
    declared = _declared(config)
    if (model is None) != tiny_model:
        raise click.UsageError("name a model directory with --model, or take --tiny-model")
    if rollouts is None and (environment is None or min_reward is not None or settings["epochs"] is not None):
        raise click.UsageError("name --environment, or --rollouts, which --min-reward and --epochs are for")
    if rollouts is not None and (environment is None) != (settings["until_accuracy"] is None):
        raise click.UsageError("beside --rollouts, --environment and --until-accuracy need each other")
    expect_many_objects()
    # Before torch is imported, which takes long.
    if environment is not None:
        load_environment(environment, declared)
    if model is not None:
        read_config(model)
    exchanges = None if rollouts is None else _exchanges(rollouts, min_reward)
    from rollstream.local.tiny_model import write_tiny_model
    from rollstream.trainer.sft.settings import SftSettings
    from rollstream.trainer.sft.sft import run_sft

    configure_logging("sft")
    made_directory(output)
    with tempfile.TemporaryDirectory() as scratch:
        start = model or Path(scratch)
        if model is None:
            write_tiny_model(start, seed=int(settings["seed"] or 0))
        values = {"model_path": start, "output": output, "environment": environment, "environments": declared}
        report = run_sft(SftSettings.model_validate({**values, **settings}), exchanges)
    for reason, number in report.left_out.items():
        click.echo(f"{number} answers left out: {reason}")
    accuracy = "not checked" if report.accuracy is None else f"{report.accuracy:.3f}"
    click.echo(f"{output}: {report.num_steps} steps, loss {report.loss:.3f}, sampled accuracy {accuracy}")


def _declared(config: Path | None) -> "Declarations":
    return {} if config is None else StageSettings.load(config).environments


def _exchanges(rollouts: Path, min_reward: float | None) -> "RolloutExchanges":
    from rollstream.offline.convert.conversations import RolloutExchanges

    found = RolloutExchanges(rollouts, min_reward)
    for line in found.tally.lines():
        click.echo(escaped(line))
    return found
