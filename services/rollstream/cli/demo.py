"""`rollstream demo`: the whole loop on this machine."""

from datetime import datetime
from pathlib import Path

import click

from rollstream.cli.options import FiniteRange, made_directory, whole
from rollstream.local.demo.options import LEARNING_RATE, NUM_STEPS, STAGES_OF_DEMO, DemoOptions


@click.command()
@click.option(
    "--run-dir", type=click.Path(file_okay=False, path_type=Path), help="A new directory. Default: runs/demo-<time>."
)
@click.option("--seed", type=whole(0), default=0, show_default=True, help="Seed of model and tasks.")
@click.option("--steps", type=whole(10), default=NUM_STEPS, show_default=True, help="Optimizer steps.")
@click.option(
    "--learning-rate", type=FiniteRange(min=0), default=LEARNING_RATE, show_default=True,
    help="0: the model does not change, to compare with.",
)  # fmt: skip
@click.option("--kill", type=click.Choice(STAGES_OF_DEMO), help="kill -9 this stage during the run; nothing is lost.")
@click.option("--down", is_flag=True, help="Stop Kafka and Redis at the end.")
def command(run_dir: Path | None, seed: int, steps: int, learning_rate: float, kill: str | None, down: bool) -> None:
    """Run the whole loop: Kafka, Redis, a tiny model, producer, generator, scorer and trainer.

    The reward rises within minutes. The run directory keeps the settings, logs, weights and figures.
    """
    from rollstream.local.demo.show import show_demo

    show_demo(
        DemoOptions(
            run_dir=made_directory(run_dir or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"),
            seed=seed,
            num_steps=steps,
            learning_rate=learning_rate,
            kill=kill,  # type: ignore[arg-type]  # click.Choice has checked it
            keep_up=not down,
        )
    )
