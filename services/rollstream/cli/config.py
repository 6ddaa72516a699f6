"""`rollstream config`: explain every key of a run's file, check a file, or show which values apply."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollstream.cli.options import find_config, json_option
from rollstream.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("config")
@click.option("--table", help="Only this table, e.g. shared, kafka, trainer or trainer.learning.")
@click.option(
    "--check",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Say what is wrong in this file, or without a name in the run's, for every table. Exits with 78 then.",
)
@click.option("--resolved", "is_resolved", is_flag=True, help="Show the values that apply, and where each comes from.")
@click.option("--config", type=_FILE, envvar="ROLLSTREAM_CONFIG", help="The run's file, for --resolved and --check.")
@json_option
def command(table: str | None, check: str | None, is_resolved: bool, config: Path | None, as_json: bool) -> None:
    """Explain every key of a run's file: type, unit, bound, default and meaning.

    A table may set a key of the top of the file for its stage alone. Environment variables replace what the file says:
    ROLLSTREAM_RUN, ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS; the tables of the stages are left out, as in
    ROLLSTREAM_ENGINE__DTYPE.
    """
    if check is not None:
        _check(_file_of(check, config), as_json)
    elif is_resolved:
        _show_resolved(find_config(config), table, as_json)
    else:
        from rollstream.views.configuration import all_keys, shown_keys

        keys = all_keys(table)
        _show([key.as_plain() for key in keys], shown_keys(keys), as_json)


def _file_of(check: str, config: Path | None) -> Path:
    path = Path(check) if check else find_config(config)
    if path is None:
        raise ConfigurationError("only ROLLSTREAM_RUN names the run: there is no file to check; name one after --check")
    return path


def _check(path: Path, as_json: bool) -> None:
    from rollstream.process.settings.run_file import RunFile
    from rollstream.process.terminal import say
    from rollstream.views.configuration import problems, stages_in
    from rollstream.views.rendering import json_text

    file = RunFile.read(path)
    found, stages = problems(file), stages_in(file)
    if as_json:
        click.echo(json_text({"file": str(path), "stages": stages, "problems": found}))
    for problem in () if as_json else found:
        say(problem)
    if found:
        raise SystemExit(ConfigurationError.exit_code)
    if not as_json:
        say(f"{path} is fine for {', '.join(stages) or 'commands; it has no table of a stage'}")


def _show_resolved(path: Path | None, table: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from rollstream.process.settings.run_file import RunFile
    from rollstream.views.configuration import is_in, resolved, shown_values

    found = resolved(RunFile.read(path) if path else RunFile())
    chosen = [one for one in found if table is None or is_in(one.table, table)]
    _show([asdict(one) for one in chosen], shown_values(chosen), as_json)


def _show(rows: list[dict[str, object]], table: "RenderableType", as_json: bool) -> None:
    from rich.console import Console

    from rollstream.views.rendering import json_text

    if as_json:
        click.echo(json_text(rows))
    else:
        Console().print(table)
