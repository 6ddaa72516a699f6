"""`rollstream dead-letters`: list messages that could not be handled, and put them back when the cause is gone."""

import os
from collections import Counter
from typing import Any

import click

from rollstream.cli.options import connected, json_option, settings_option
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import escaped, say
from rollstream.schemas.errors import ConfigurationError
from rollstream.stage.dead_letters import DeadLetter
from rollstream.stage.replay import Outcome, list_dead_letters, replayed, why_not_replayable
from rollstream.views.rendering import dead_letter_line, json_text


@click.group()
def command() -> None:
    """List or replay messages that could not be handled."""


@command.command("list")
@json_option
@settings_option
def list_command(as_json: bool, settings: StageSettings) -> None:
    """List each dead letter once: its identity (group/topic/partition/offset), its time, and what was wrong.

    Anybody who may write to dead-letters may write a letter, so each is compared with the message that it names.
    FORGED: other bytes lie there. FOREIGN: that group does not read that topic. EXPIRED: the message is gone.
    """
    letters = list_dead_letters(connected(settings))
    if as_json:
        click.echo(json_text([_row(letter) for letter in letters]))
        return
    for letter in letters:
        say(dead_letter_line(letter))
    waiting = sum(letter.replayed_at is None and letter.doubt is None for letter in letters)
    doubted = Counter(letter.doubt.kind for letter in letters if letter.doubt is not None)
    said = "".join(f", {count} {kind}" for kind, count in sorted(doubted.items()))
    click.echo(f"{len(letters)} dead letters of run {settings.run}, {waiting} of them not replayed{said}", err=True)


@command.command("replay")
@click.argument("identities", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that can be replayed.")
@settings_option
def replay_command(identities: tuple[str, ...], everything: bool, settings: StageSettings) -> None:
    """Put messages back on their topics: IDENTITIES as `list` prints them, or --all.

    What is put back is the message that lies at the letter's place, and only on a topic of this run. A message can be
    replayed three times. One that was too large to be kept whole, that is gone or that was never there can't be. With
    --all those are passed over; one that is named makes the exit code 1.
    """
    if everything == bool(identities):
        raise click.UsageError("give identities as `dead-letters list` prints them, or --all")
    run = connected(settings)
    letters = list_dead_letters(run)
    chosen = [letter for letter in letters if why_not_replayable(letter) is None]
    if not everything:
        chosen = _named(letters, identities)
    with run.publisher(f"replay-{os.getpid()}") as publisher:
        outcomes = [_said(outcome) for outcome in replayed(publisher, run, chosen)]
    refusals = [outcome.refusal for outcome in outcomes if outcome.refusal is not None]
    others = f", {len(letters) - len(chosen)} others can't be or were" if everything else ""
    click.echo(f"{len(outcomes) - len(refusals)} replayed{others}", err=True)
    if refusals:
        raise ConfigurationError(f"{len(refusals)} of {len(outcomes)} were not replayed, the first: {refusals[0]}")


def _said(outcome: Outcome) -> Outcome:
    if outcome.refusal is None:
        say(f"replayed {outcome.letter.identity}")
    else:
        click.echo(escaped(f"not replayed: {outcome.refusal}"), err=True)
    return outcome


def _named(letters: list[DeadLetter], identities: tuple[str, ...]) -> list[DeadLetter]:
    # Of several letters of one identity that one counts whose word holds.
    known = {str(letter.identity): letter for letter in sorted(letters, key=lambda letter: letter.doubt is None)}
    unknown = [identity for identity in identities if identity not in known]
    if unknown:
        raise ConfigurationError(f"no dead letter {', '.join(unknown)}; `rollstream dead-letters list` shows them all")
    return [known[identity] for identity in identities]


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "identity": str(letter.identity),
        **letter.identity._asdict(),
        "num_bytes": letter.num_bytes,
        "cut_from_bytes": letter.cut_from_bytes,
        "error_class": letter.error_class,
        "error_message": letter.error_message,
        "attempts": letter.attempts,
        "failed_at": letter.failed_at,
        "schema_id": letter.schema_id,
        "replays": letter.replays,
        "replayed_at": letter.replayed_at,
        "doubt": None if letter.doubt is None else letter.doubt.kind,
        "doubt_why": None if letter.doubt is None else letter.doubt.why,
    }
