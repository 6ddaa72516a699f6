"""`rollstream topics`: create, describe or delete the topics of a run."""

from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from rollstream.cli.options import connected, json_option, settings_option
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.views.rendering import json_text


@click.group()
def command() -> None:
    """Create, describe or delete a run's topics."""


@command.command()
@click.option(
    "--partitions", default=4, show_default=True, type=click.IntRange(1, 1000), help="For each topic that has several."
)
@click.option("--streams", is_flag=True, help="Create the streams of `rc-actor` too.")
@settings_option
def create(partitions: int, streams: bool, settings: StageSettings) -> None:
    """Create the topics that are missing. With three brokers or more, each topic is replicated three times."""
    created = connected(settings).admin().create_topics(settings.run, partitions=partitions, with_streams=streams)
    for name in created:
        click.echo(f"created {name}")
    if not created:
        click.echo(f"every topic of run {settings.run} is there already")


@command.command()
@json_option
@settings_option
def describe(as_json: bool, settings: StageSettings) -> None:
    """Show the run's topics with their partitions, replication and records."""
    topics = connected(settings).admin().describe_topics(settings.run)
    if not topics:
        raise ConfigurationError(f"run {settings.run} has no topics; make them with `rollstream topics create`")
    if as_json:
        click.echo(json_text([asdict(topic) for topic in topics]))
        return
    table = Table(
        "topic", "partitions", "replication", "records (at most)", "id", title=f"topics of run {settings.run}"
    )
    for topic in topics:
        cells = (topic.num_partitions, topic.replication, topic.num_records)
        table.add_row(topic.name, *(str(cell) for cell in cells), topic.topic_id)
    Console().print(table)


@command.command()
@click.option("--yes", is_flag=True, help="Don't ask.")
@settings_option
def delete(yes: bool, settings: StageSettings) -> None:
    """Delete every topic of the run. Its prompts, rollouts and ledger are lost: the run can't go on."""
    if not yes:
        typed = click.prompt(f"This deletes run {settings.run} for good. Type its name to go on", default="")
        if typed != settings.run:
            raise click.ClickException(f"{typed!r} is not {settings.run!r}: nothing was deleted")
    deleted = connected(settings).admin().delete_topics(settings.run)
    for name in deleted:
        click.echo(f"deleted {name}")
    if not deleted:
        click.echo(f"run {settings.run} has no topics")
