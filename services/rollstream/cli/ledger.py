"""`rollstream ledger`: find the records of `weights` and `ledger` that stop a run, and repair it."""

from typing import TYPE_CHECKING

import click

from rollstream.cli.options import connected, json_option, settings_option
from rollstream.process.settings.base import StageSettings

if TYPE_CHECKING:
    from rollstream.history.passing import RecordPlace


@click.group("ledger")
def command() -> None:
    """Check the ledger, or repair it where records stop every trainer."""


@command.command("check")
@json_option
@settings_option
def check_command(as_json: bool, settings: StageSettings) -> None:
    """List the records of `weights` and `ledger` that can't be read or contradict others, each with its reason.

    Exits with 1 if there are any: no trainer starts on such a run.
    """
    from rollstream.history.repair import check
    from rollstream.process.terminal import say
    from rollstream.views.rendering import json_text

    problems = check(connected(settings))
    if as_json:
        rows = [{"topic": place.topic, "offset": place.offset, "reason": str(error)} for place, error in problems]
        click.echo(json_text(rows))
    for place, error in () if as_json else problems:
        say(f"{place}  {error}")
    click.echo(f"{len(problems)} records of run {settings.run} can't be read or contradict others", err=True)
    if problems:
        raise SystemExit(1)


@command.command("repair")
@click.argument("records", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that `check` lists.")
@click.option("--force", is_flag=True, help="Also while a trainer runs: it is fenced and exits with 75.")
@settings_option
def repair_command(records: tuple[str, ...], everything: bool, force: bool, settings: StageSettings) -> None:
    """Write that readers pass over RECORDS, as `check` prints them (`ledger@17`), or over --all that it lists.

    Where a stranger's entry fits and the trainer's own contradict it, name the stranger's. Nothing is deleted,
    and no repair can be taken back.
    """
    from rollstream.history.repair import repair

    if everything == bool(records):
        raise click.UsageError("give records as `ledger check` prints them, or --all")
    named = None if everything else [_place(text) for text in records]
    connected(settings)
    places = repair(settings, named, force=force)
    said = f"readers of run {settings.run} pass over {', '.join(str(place) for place in places)}"
    click.echo(said if places else "nothing to repair")


def _place(text: str) -> "RecordPlace":
    from rollstream.history.passing import RecordPlace

    topic, at, offset = text.partition("@")
    if not at or not offset.isdecimal():
        raise click.BadParameter(f"{text!r} is no record: write topic@offset, e.g. ledger@17", param_hint="RECORDS")
    return RecordPlace(topic, int(offset))
