"""`rollstream up`: start Kafka and Redis on this machine, in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import click

from rollstream.cli.options import made_directory


@click.command()
@click.option("--brokers", type=click.Choice(["1", "3"]), help="Kafka brokers of a new stack.  [default: 1]")
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/local"),
    show_default=True,
    help="Where ports, data and logs are kept.",
)
def command(brokers: str | None, run_dir: Path) -> None:
    """Start Kafka and Redis without containers. Ports and data stay the same at the next start."""
    from rollstream.local.processes import Placement
    from rollstream.local.run_file import ensure_run_file, refuse_another_runs_paths
    from rollstream.local.stack import LocalStack

    number = cast("Literal[1, 3] | None", int(brokers) if brokers else None)
    stack = LocalStack(made_directory(run_dir), brokers=number, placement=Placement(dies_with_parent=False))
    if (came_from := stack.came_from) is not None:
        refuse_another_runs_paths(run_dir, came_from)
        click.echo(
            f"{run_dir} was formatted at {came_from}: its own data is opened, and that one is left alone", err=True
        )
    click.echo(f"starting Kafka and Redis in {run_dir} (the first start fetches 45 MB of jars)", err=True)
    stack.up()
    for service in stack.status():
        click.echo(f"{service.name:8} {service.address:18} pid {service.pid}")
    click.echo(f"settings for the stages: --config {ensure_run_file(run_dir, stack)}")
    click.echo(f"stop with: rollstream down --run-dir {run_dir}")
