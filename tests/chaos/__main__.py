"""`python -m tests.chaos`: faults upon a run on this machine, then the accounting."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from rollstream.cli.options import FiniteRange, made_directory


@click.command()
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: runs/chaos-<time>.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="A seed gives the same faults.")
@click.option("--faults", "num_faults", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--brokers", type=click.Choice(["1", "3"]), default="3", show_default=True, help="Kafka brokers.")
@click.option(
    "--generator",
    "generators",
    type=click.Choice(["scripted", "vllm", "openai_http"]),
    multiple=True,
    default=("scripted", "scripted"),
    show_default=True,
    help="Engine of one of the generators; once for each. openai_http asks a vLLM server, which is killed too.",
)
@click.option(
    "--pause",
    "pause_seconds",
    type=FiniteRange(min=0.1, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two faults, on average. Give vLLM several times as long: it starts for a minute.",
)
@click.option(
    "--callers", type=click.IntRange(0, 100), default=4, show_default=True, help="Clients that ask at the same time."
)
def command(run_dir: Path | None, brokers: str, pause_seconds: float, **options: Any) -> None:
    """Kill, suspend, replace and deceive the stages of a run, then check that nothing was lost or trained twice.

    Meanwhile clients ask the generators over HTTP and rate the answers, which then train. Each answer that reaches them
    whole must be recorded.

    Starts its own brokers, Redis and stages, with scripted engines unless --generator says otherwise. A thousand faults
    take some 40 minutes. Prints one JSON object; exits with 1 if anything does not hold.
    """
    from rollstream.views.rendering import json_text
    from tests.chaos.start import ChaosOptions, run_chaos
    from tests.chaos.world import Pace

    chosen = ChaosOptions(
        run_dir=made_directory(run_dir or Path("runs") / f"chaos-{datetime.now():%Y%m%d-%H%M%S}"),
        brokers=1 if brokers == "1" else 3,
        pace=Pace(pause_seconds=pause_seconds),
        **options,
    )
    report = run_chaos(chosen, lambda text: click.echo(text, err=True))
    click.echo(json_text(asdict(report)))
    if report.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    from rollstream.cli.main import run

    run(command, "python -m tests.chaos")
