"""`rollstream weights`: list, show or roll back weight versions."""

import click

from rollstream.cli.options import connected, json_option, settings_option, whole
from rollstream.process.settings.base import StageSettings


@click.group("weights")
def command() -> None:
    """List, show or roll back weight versions."""


@command.command("list")
@settings_option
@json_option
@click.option("--last", default=20, show_default=True, type=whole(1), help="Newest versions to list.")
def list_versions(settings: StageSettings, as_json: bool, last: int) -> None:
    """List the newest versions: the parent of each, whether it survived restarts, and whether its files are pruned."""
    from rollstream.views.weights import show_list

    connected(settings)
    show_list(settings, last=last, as_json=as_json)


@command.command("show")
@settings_option
@json_option
@click.argument("version", type=click.IntRange(min=0))
def show_version(settings: StageSettings, as_json: bool, version: int) -> None:
    """Show a version: its files, whether their checksums are right, and the metrics of the step that made it."""
    from rollstream.views.weights import show_one

    connected(settings)
    show_one(settings, version, as_json=as_json)


@command.command("rollback")
@settings_option
@click.option("--force", is_flag=True, help="Also while a trainer runs: it is fenced and exits with 75.")
@click.option("--unseen-checkpoint", is_flag=True, help="Also if the checkpoint can't be seen from this machine.")
@click.argument("version", type=click.IntRange(min=0))
def roll_back_to(settings: StageSettings, version: int, force: bool, unseen_checkpoint: bool) -> None:
    """Publish the files of an older version as a new version.

    Generators load it. The next trainer starts from the newest checkpoint at or before it, so a version whose
    checkpoint is deleted is refused.
    """
    from rollstream.views.weights import roll_back_and_show

    connected(settings)
    roll_back_and_show(settings, version, force=force, unseen=unseen_checkpoint)
