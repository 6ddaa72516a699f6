"""`rollstream down`: stop the local Kafka and Redis, and keep their data."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/local"),
    show_default=True,
    help="The directory that was given to `up`.",
)
def command(run_dir: Path) -> None:
    """Stop the local Kafka and Redis. The topics and their records are there again after the next `up`."""
    from rollstream.local.stack import LocalStack

    if LocalStack(run_dir).down():
        click.echo(f"stopped; the data is kept in {run_dir}")
    else:
        click.echo(f"nothing runs in {run_dir}")
