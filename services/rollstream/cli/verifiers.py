"""`rollstream verifiers`: runs that the verifiers library saved, as rollouts, and rollouts as such runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rollstream.cli.options import FiniteRange
from rollstream.process.terminal import escaped

if TYPE_CHECKING:
    from rollstream.offline.convert.verifiers_runs import Converted

_FILE = click.Path(exists=True, path_type=Path)
_OUTPUT = click.Path(path_type=Path)


@click.group("verifiers")
def command() -> None:
    """Convert rollouts from and to verifiers' saved runs, and to what Prime-RL's SFT reads."""


@command.command("import")
@click.argument("run", type=_FILE)
@click.argument("output", type=_OUTPUT)
def import_(run: Path, output: Path) -> None:
    """Write a run's results.jsonl as rollouts: .jsonl, .parquet, else a directory of `datasets`.

    Its metadata.json is kept beside the output, for an export.
    """
    from rollstream.offline.convert.verifiers_runs import import_run

    _say(import_run(run, output))


@command.command("export")
@click.argument("rollouts", type=_FILE)
@click.option("--outputs", type=_OUTPUT, default=Path("outputs"), show_default=True, help="Directory of all runs.")
@click.option("--env-id", default="", help="Name of the environment; default: the imported run's.")
@click.option("--model", default="", help="Name of the model; default: the imported run's.")
@click.option("--run-id", default="", help="Name of the run; default: the imported run's, else a new one.")
@click.option(
    "--zero-for-failed",
    is_flag=True,
    help="Reward 0.0 where there is none, as verifiers writes; else null. An imported row stays as it was.",
)
def export(rollouts: Path, outputs: Path, env_id: str, model: str, run_id: str, zero_for_failed: bool) -> None:
    """Write rollouts as OUTPUTS/evals/ENV--MODEL/RUN/, which `prime eval view` shows."""
    from rollstream.offline.convert.verifiers_runs import RunName, export_run

    name = RunName(env_id=env_id, model=model, run_id=run_id)
    _say(export_run(rollouts, outputs, name, zero_for_failed=zero_for_failed))


@command.command("export-sft")
@click.argument("rollouts", type=_FILE)
@click.argument("output", type=_OUTPUT)
@click.option("--layout", type=click.Choice(["prompt-completion", "messages"]), default="prompt-completion")
@click.option("--min-reward", type=FiniteRange(), help="Least reward of a row; default: any, but it must have one.")
def export_sft(
    rollouts: Path, output: Path, layout: Literal["prompt-completion", "messages"], min_reward: float | None
) -> None:
    """Write good rollouts as rows that Prime-RL's SFT reads: .jsonl or .parquet."""
    from rollstream.offline.convert.prime_rl import export_for_sft

    tally = export_for_sft(rollouts, output, layout=layout, min_reward=min_reward)
    click.echo("\n".join([str(output), *map(escaped, tally.lines())]))


def _say(done: "Converted") -> None:
    click.echo(f"{done.path}: {done.num_rows} rows, {done.num_bad} left out")
    for line in done.bad:
        click.echo(f"   {escaped(line)}")
