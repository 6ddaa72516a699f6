"""`rollstream replay`: read an archive back as rollouts, to score them again or to train on them."""

from pathlib import Path

import click

from rollstream.cli.options import FiniteRange, LocationType, whole
from rollstream.process.settings.base import RUN_FILE, StageSettings

_LARGEST = 1e9


@click.command()
@click.argument("directory", type=LocationType())
@click.option("--output", type=click.Path(path_type=Path), required=True, help="File: .jsonl or .parquet.")
@click.option("--environment", default="", help="Score again with this environment's rubric, as reward_NAME.")
@click.option(
    "--sft", "as_sft", is_flag=True,
    help="Write prompt and completion as messages, with the prompt's tools, for supervised training.",
)  # fmt: skip
@click.option("--min-reward", type=FiniteRange(-_LARGEST, _LARGEST), help="Leave out what has less, or no reward.")
@click.option("--processes", type=whole(1), default=1, show_default=True, help="Processes that score.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A run's {RUN_FILE}: environments of your own, and [storage] for an archive in a bucket.",
)
def command(
    directory: str, output: Path, environment: str, as_sft: bool, min_reward: float | None, processes: int,
    config: Path | None,
) -> None:  # fmt: skip
    """Write the rollouts of the archive DIRECTORY as rows, one for each. Nothing is asked of a broker.

    With --environment, --min-reward means the new reward.
    """
    from rollstream.archive.replay import ReplayRequest, replay
    from rollstream.environments.pool.pool import PoolBounds

    if output.suffix not in (".jsonl", ".parquet"):
        raise click.BadParameter("the name ends in .jsonl or .parquet", param_hint="--output")
    settings = StageSettings.load(config) if config else None
    request = ReplayRequest(
        output=output,
        kind="jsonl" if output.suffix == ".jsonl" else "parquet",
        as_sft=as_sft,
        environment=environment,
        environments=settings.environments if settings else {},
        min_reward=min_reward,
        bounds=PoolBounds(num_processes=processes),
    )
    report = replay(directory, request, settings.storage if settings else None)
    click.echo(f"{output}: {report.num_written} rows of {report.num_records} records")
    for gap in report.gaps:
        click.echo(f"  not in the archive: {gap}")
    for why, count in report.unscored.most_common():
        click.echo(f"  not scored: {count} {why}")
    for why, count in report.left_out.most_common():
        click.echo(f"  left out: {count} {why}")
