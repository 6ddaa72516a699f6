"""`rollstream chaos`: faults upon a run on this machine, then the accounting."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Literal, cast

import click

from rollstream.cli.options import made_directory


@click.command()
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: runs/chaos-<time>.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="A seed gives the same faults.")
@click.option("--faults", "num_faults", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--brokers", type=click.Choice(["1", "3"]), default="3", show_default=True, help="Kafka brokers.")
def command(run_dir: Path | None, seed: int, num_faults: int, brokers: str) -> None:
    """Kill, suspend, replace and deceive the stages of a run, then check that no prompt was lost or trained twice.

    Starts its own brokers, Redis and stages, with a scripted engine. A thousand faults take some 40 minutes. Prints
    one JSON object; exits with 1 if anything does not hold.
    """
    from rollstream.local.chaos.start import ChaosOptions, run_chaos
    from rollstream.views.rendering import json_text

    directory = made_directory(run_dir or Path("runs") / f"chaos-{datetime.now():%Y%m%d-%H%M%S}")
    number = cast("Literal[1, 3]", int(brokers))
    options = ChaosOptions(run_dir=directory, seed=seed, num_faults=num_faults, brokers=number)
    report = run_chaos(options, lambda text: click.echo(text, err=True))
    click.echo(json_text(asdict(report)))
    if report.problems:
        raise SystemExit(1)
