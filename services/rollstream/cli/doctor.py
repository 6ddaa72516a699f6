"""`rollstream doctor`: check whether this machine is ready for a run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/local"),
    show_default=True,
    help="The directory that the run would use.",
)
def command(run_dir: Path) -> None:
    """Check cores, memory, disk, Java, Kafka's jars, ports and GPU. Exits with 1 if a run could not start."""
    from rollstream.local.doctor import Verdict, examine

    colors = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}
    results = examine(run_dir)
    for result in results:
        click.echo(f"{click.style(f'{result.verdict:8}', colors[result.verdict])}{result.name:14}{result.found}")
        if result.advice:
            click.echo(f"{'':22}{result.advice}")
    if any(result.verdict is Verdict.FAILED for result in results):
        raise SystemExit(1)
