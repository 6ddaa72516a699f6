"""`rollstream schemas`: check, update or register the Avro schemas of the records."""

from contextlib import closing
from pathlib import Path

import click

from rollstream.cli.options import find_config
from rollstream.process.settings.address import revealed
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.addresses import checked_address
from rollstream.schemas.compatibility import check_packaged, write_schemas
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import checked_run
from rollstream.schemas.registry import manifest


def _checked_url(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else checked_address(value, "http", "https")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _checked_run(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else checked_run(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group()
def command() -> None:
    """Check, register or update the record schemas."""


@command.command()
def check() -> None:
    """Compare every schema with its model and with all older versions (FULL_TRANSITIVE)."""
    problems = check_packaged()
    for problem in problems:
        click.secho(problem, fg="red", err=True)
    if problems:
        raise SystemExit(1)
    click.echo(f"{len(manifest())} schema versions: each fits its model, and every older reader and writer")


@command.command()
def update() -> None:
    """Derive the schemas from the models, and add those that changed to the manifest.

    Refuses incompatible changes.
    """
    added = write_schemas()
    for entry in added:
        click.echo(f"added {entry.record} version {entry.version} as id {entry.schema_id}")
    if not added:
        click.echo("no model changed")


@command.command()
@click.option(
    "--url",
    callback=_checked_url,
    help="Confluent-compatible registry, for example http://127.0.0.1:8081. One that needs a password belongs into "
    "the settings, since others see the arguments of a process.  [default: registry_url of the settings]",
)
@click.option("--run", callback=_checked_run, help="Whose topics.  [default: the run of the settings]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ROLLSTREAM_CONFIG",
    help="The run's file; read unless both --url and --run are given.",
)
def register(url: str | None, run: str | None, config: Path | None) -> None:
    """Register the schemas of a run's topics. Do this before the stages start: they register nothing."""
    from rollstream.schemas.registry_url import ConfluentRegistry

    if url is None or run is None:
        settings = StageSettings.load(find_config(config))
        url, run = url or revealed(settings.registry_url), run or settings.run
    if url is None:
        raise ConfigurationError(
            f"run {run} has no registry: set registry_url in its file, or ROLLSTREAM_REGISTRY_URL, or give --url"
        )
    with closing(ConfluentRegistry(url, run=run)) as registry:
        for subject, schema_id in registry.register().items():
            click.echo(f"{subject} {schema_id}")
