"""`rollstream doctor`: is this machine ready for a run?"""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/local"),
    show_default=True,
    help="The directory a run would use.",
)
def command(run_dir: Path) -> None:
    """Check cores, memory, disk, Java, jars, ports and GPU; exit 1 if a run could not start."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rollstream.local.doctor import Verdict, examine

    colors = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}
    results = examine(run_dir)
    table = Table("check", "", "found", "what to change", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            result.name, Text(result.verdict, colors[result.verdict]), Text(result.found), Text(result.advice)
        )
    Console().print(table)
    if any(result.verdict is Verdict.FAILED for result in results):
        raise SystemExit(1)
