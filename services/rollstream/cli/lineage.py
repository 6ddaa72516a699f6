"""`rollstream lineage`: where a rollout or a step came from and what was made of it, read from the topics."""

import json
from dataclasses import fields
from typing import Any

import click

from rollstream.bus.run import Run
from rollstream.cli.options import json_option, settings_option
from rollstream.history.lineage import Found, RolloutStory, StepStory
from rollstream.process.settings import StageSettings
from rollstream.views.lineage import read_rollout, read_step, rollout_lines, step_lines
from rollstream.views.rendering import plain


@click.command()
@click.argument("what", metavar="ROLLOUT_ID|STEP")
@json_option
@settings_option
def command(what: str, as_json: bool, settings: StageSettings) -> None:
    """Show everything about a rollout (prompt, attempts, reward, step, version), or the rollouts of an optimizer step.

    Reads the whole ledger of the run, and for a rollout all its topics. For a run of weeks this takes minutes.
    """
    run = Run(settings)
    story = read_step(run, int(what)) if what.isdecimal() else read_rollout(run, what)
    if as_json:
        click.echo(json.dumps(_plain_story(story)))
        return
    for line in rollout_lines(story) if isinstance(story, RolloutStory) else step_lines(story):
        click.echo(line)


def _plain_story(value: Any) -> Any:
    if isinstance(value, RolloutStory | StepStory | Found):
        return {field.name: _plain_story(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain_story(part) for part in value]
    return plain(value)
