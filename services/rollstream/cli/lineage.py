"""`rollstream lineage`: where a rollout or a step came from and what was made of it, read from the topics."""

from dataclasses import fields
from typing import Any, Final

import click

from rollstream.cli.options import connected, json_option, settings_option
from rollstream.history.lineage import FoundRecord, RolloutStory, StepStory
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import say
from rollstream.views.lineage import read_rollout, read_step, rollout_lines, step_lines
from rollstream.views.rendering import json_text, plain

_MOST_DIGITS: Final = 19


@click.command()
@click.argument("what", metavar="ROLLOUT_ID|STEP")
@json_option
@settings_option
def command(what: str, as_json: bool, settings: StageSettings) -> None:
    """Show everything about a rollout (prompt, attempts, reward, step, version), or the rollouts of an optimizer step.

    Reads the whole ledger of the run, and for a rollout all its topics. For a run of weeks this takes minutes.
    """
    # A step is at most a number of 64 bits; int() refuses thousands of digits.
    is_step = what.isdecimal() and len(what) <= _MOST_DIGITS
    run = connected(settings)
    story = read_step(run, int(what)) if is_step else read_rollout(run, what)
    if as_json:
        click.echo(json_text(_plain_story(story)))
        return
    for line in rollout_lines(story) if isinstance(story, RolloutStory) else step_lines(story):
        say(line)


def _plain_story(value: Any) -> Any:
    if isinstance(value, RolloutStory | StepStory | FoundRecord):
        return {field.name: _plain_story(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain_story(part) for part in value]
    return plain(value)
