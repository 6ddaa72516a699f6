"""`rollstream verifiers`: runs that the verifiers library saved, as rollouts, and rollouts as such runs."""

from typing import TYPE_CHECKING

import click

from rollstream.cli.command_options import options_of
from rollstream.offline.options import ExportOptions, ImportOptions, SftExportOptions
from rollstream.process.terminal import say

if TYPE_CHECKING:
    from rollstream.offline.convert.verifiers_runs import Converted


@click.group("verifiers")
def command() -> None:
    """Convert rollouts from and to verifiers' saved runs, and to what Prime-RL's SFT reads."""


@command.command("import")
@options_of(ImportOptions)
def import_(options: ImportOptions) -> None:
    """Write a run's results.jsonl as rollouts: .jsonl, .parquet, else a directory of `datasets`.

    Its metadata.json is kept beside the output, for an export.
    """
    from rollstream.offline.convert.verifiers_runs import import_run

    _say(import_run(options.run, options.output))


@command.command("export")
@options_of(ExportOptions)
def export(options: ExportOptions) -> None:
    """Write rollouts as OUTPUTS/evals/ENV--MODEL/RUN/, which `prime eval view` shows."""
    from rollstream.offline.convert.verifiers_runs import export_run

    _say(export_run(options))


@command.command("export-sft")
@options_of(SftExportOptions)
def export_sft(options: SftExportOptions) -> None:
    """Write good rollouts as rows that Prime-RL's SFT reads: .jsonl or .parquet."""
    from rollstream.offline.convert.conversations import export_for_sft

    tally = export_for_sft(options)
    for line in (str(options.output), *tally.lines()):
        say(line)


def _say(done: "Converted") -> None:
    say(f"{done.path}: {done.num_rows} rows, {done.num_bad} left out")
    for line in done.bad:
        say(f"   {line}")
