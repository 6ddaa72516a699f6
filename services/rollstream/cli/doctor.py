"""`rollstream doctor`: check whether this machine is ready for a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from rollstream.cli.options import json_option
from rollstream.process.settings.base import RUN_FILE


@click.command()
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/local"),
    show_default=True,
    help="The directory that the run would use.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="ROLLSTREAM_CONFIG",
    default=lambda: Path(RUN_FILE) if Path(RUN_FILE).is_file() else None,
    show_default=f"./{RUN_FILE} if there is one",
    help="A run's file: check the certificates and buckets too that it names.",
)
@json_option
def command(run_dir: Path, config: Path | None, as_json: bool) -> None:
    """Check cores, memory, disk, Java, Kafka's jars, ports and GPU. Exits with 1 if a run could not start."""
    from rollstream.local.doctor import CheckVerdict, examine
    from rollstream.views.rendering import json_text

    colors = {CheckVerdict.OK: "green", CheckVerdict.WARNING: "yellow", CheckVerdict.FAILED: "red"}
    results = examine(run_dir, config)
    if as_json:
        click.echo(json_text([asdict(result) for result in results]))
    for result in () if as_json else results:
        click.echo(f"{click.style(f'{result.verdict:8}', colors[result.verdict])}{result.name:14}{result.found}")
        if result.advice:
            click.echo(f"{'':22}{result.advice}")
    if any(result.verdict is CheckVerdict.FAILED for result in results):
        raise SystemExit(1)
