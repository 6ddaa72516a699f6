"""`python -m tests.soak`: a run on this machine for long, to see whether anything grows that must not."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from rollstream.cli.options import FiniteRange, made_directory, whole


@click.command()
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="Default: runs/soak-<time>.")
@click.option("--steps", type=whole(1000), default=10_000, show_default=True, help="End after this many.")
@click.option("--hours", type=FiniteRange(0.1, 1000), default=2.0, show_default=True, help="End after this time.")
def command(run_dir: Path | None, steps: int, hours: float) -> None:
    """Run all stages in time-lapse for thousands of steps, with restarts, kills, rollbacks and joiners.

    Starts its own broker, Redis and stages, with a scripted engine; what production keeps for a week is kept for
    minutes. Compares memory, open files, disk and start times of the last tenth with those of the second tenth, and
    draws them over the steps. Prints one JSON object; exits with 1 if anything grew, or if it was ended with Ctrl-C:
    then it ends every process first.
    """
    from rollstream.process.entry import ask_on_signal
    from rollstream.process.stop import Stop
    from rollstream.views.rendering import json_text
    from tests.soak.samples import draw
    from tests.soak.start import SoakOptions, run_soak
    from tests.soak.verdict import unjudged, verdicts

    directory = made_directory(run_dir or Path("runs") / f"soak-{datetime.now():%Y%m%d-%H%M%S}")
    options = SoakOptions(run_dir=directory, num_steps=steps, hours=hours)
    stop = Stop()
    ask_on_signal(stop)
    found = run_soak(options, stop, lambda text: click.echo(text, err=True))
    click.echo("every process has ended", err=True)
    compared = verdicts(found.samples, found.starts, settled_seconds=options.settled_seconds)
    if found.samples:
        draw(found.samples, found.starts, directory / "soak.png")
    report = {
        "steps": found.steps,
        "surviving_steps": found.surviving_steps,
        "seconds": round(found.seconds),
        "events": found.events,
        "dropped": found.dropped,
        "leftovers": found.leftovers,
        "verdicts": [asdict(verdict) | {"holds": verdict.holds} for verdict in compared],
        "not_judged": unjudged(compared),
        "problems": found.problems,
        "picture": str(directory / "soak.png") if found.samples else None,
    }
    click.echo(json_text(report))
    if found.problems or not compared or not all(verdict.holds for verdict in compared):
        raise SystemExit(1)


if __name__ == "__main__":
    from rollstream.cli.main import run

    run(command, "python -m tests.soak")
