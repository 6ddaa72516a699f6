"""`rollstream dead-letters`: list messages that could not be handled, and put them back when the cause is gone."""

import os
from typing import Any

import click

from rollstream.cli.options import connected, json_option, settings_option
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.stage.dead_letters import DeadLetter, list_dead_letters, replay, why_not_replayable
from rollstream.views.rendering import dead_letter_line, json_text, say


@click.group()
def command() -> None:
    """List or replay messages that could not be handled."""


@command.command("list")
@json_option
@settings_option
def list_command(as_json: bool, settings: StageSettings) -> None:
    """List each dead letter once: its identity (group/topic/partition/offset), its time, and what was wrong."""
    letters = list_dead_letters(connected(settings))
    if as_json:
        click.echo(json_text([_row(letter) for letter in letters]))
        return
    for letter in letters:
        say(dead_letter_line(letter))
    waiting = sum(letter.replayed_at is None for letter in letters)
    click.echo(f"{len(letters)} dead letters of run {settings.run}, {waiting} of them not replayed", err=True)


@command.command("replay")
@click.argument("identities", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that can be replayed.")
@settings_option
def replay_command(identities: tuple[str, ...], everything: bool, settings: StageSettings) -> None:
    """Put messages back on their topics: IDENTITIES as `list` prints them, or --all.

    A message can be replayed three times, and one that was too large to be kept whole not at all.
    """
    if everything == bool(identities):
        raise click.UsageError("give identities as `dead-letters list` prints them, or --all")
    run = connected(settings)
    letters = list_dead_letters(run)
    replayable = [letter for letter in letters if why_not_replayable(letter) is None]
    chosen = replayable if everything else _named(letters, identities)
    with run.publisher(f"replay-{os.getpid()}") as publisher:
        for letter in chosen:
            replay(publisher, run, letter)
            say(f"replayed {letter.identity}")
    click.echo(f"{len(chosen)} replayed", err=True)


def _named(letters: list[DeadLetter], identities: tuple[str, ...]) -> list[DeadLetter]:
    known = {str(letter.identity): letter for letter in letters}
    unknown = [identity for identity in identities if identity not in known]
    if unknown:
        raise ConfigurationError(f"no dead letter {', '.join(unknown)}; `rollstream dead-letters list` shows them all")
    return [known[identity] for identity in identities]


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "identity": str(letter.identity),
        **letter.identity._asdict(),
        "num_bytes": None if letter.value is None else len(letter.value),
        "cut_from_bytes": letter.cut_from_bytes,
        "error_class": letter.error_class,
        "error_message": letter.error_message,
        "attempts": letter.attempts,
        "failed_at": letter.failed_at,
        "schema_id": letter.schema_id,
        "replays": letter.replays,
        "replayed_at": letter.replayed_at,
    }
