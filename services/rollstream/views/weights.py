"""What `rollstream weights` shows."""

from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollstream.bus.run import Run
from rollstream.history.read import History, read
from rollstream.history.restorable import checkpoint_is_there
from rollstream.history.rollback import roll_back
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import say
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError
from rollstream.schemas.weights import WeightsPublished
from rollstream.views.rendering import cell, json_text


def show_list(settings: StageSettings, *, last: int, as_json: bool) -> None:
    """Print the newest `last` versions, the newest first."""
    history, store = read(Run(settings)), open_weight_store(settings.weight_store, settings.storage)
    newest = [history.published[version] for version in sorted(history.published)[-last:][::-1]]
    rows = [
        _row(settings, history, published) | {"pruned": _is_gone(store.holds(published.uri))} for published in newest
    ]
    if as_json:
        click.echo(json_text(rows))
        return
    table = Table()
    for column in ("version", "parent", "step", "made by", "surviving", "MB", "created", "checkpoint"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = {**row, "created_at": row["created_at"][11:19], "checkpoint": row["checkpoint"] is not None}
        if cells.pop("pruned"):
            cells["megabytes"] = "pruned"
        if cells.pop("checkpoint_pruned"):
            cells["checkpoint"] = "pruned"
        table.add_row(*(cell(_word(value)) for value in cells.values()), style=None if row["surviving"] else "dim")
    say(f"run {settings.run}: {len(history.published)} versions of {settings.model}")
    Console().print(table)


def show_one(settings: StageSettings, version: int, *, as_json: bool) -> None:
    """Print everything about one version, and check its files. Raises `ConfigurationError` if it does not exist."""
    history = read(Run(settings))
    if version not in history.published:
        newest = max(history.published, default="none")
        raise ConfigurationError(f"run {settings.run} has no version {version}; the newest is {newest}")
    published, entry = history.published[version], history.entries.get(version)
    shown: dict[str, Any] = {
        **_row(settings, history, published),
        "dtype": published.dtype,
        "uri": published.uri,
        "files": [file.model_dump() for file in published.files],
        "files_are": _verdict(settings, published),
        "incarnation": entry.incarnation if entry else None,
        "metrics": entry.metrics if entry else {},
    }
    if as_json:
        click.echo(json_text(shown))
        return
    table = Table(title=f"version {version}", show_header=False)
    for name, value in shown.items():
        table.add_row(name.replace("_", " "), _lines(value))
    Console().print(table)


def roll_back_and_show(settings: StageSettings, version: int, *, force: bool, unseen: bool) -> None:
    """Roll back, then print the new version and where the next trainer starts."""
    published = roll_back(settings, version, force=force, unseen=unseen)
    click.echo(f"version {published.weight_version} is published with the files of version {version}")
    checkpoint = read(Run(settings)).fold.checkpoint
    start = "the initial model" if checkpoint is None else f"the checkpoint of version {checkpoint.weight_version}"
    say(f"the next trainer goes on from {start}: {checkpoint.uri if checkpoint else 'no checkpoint is older'}")


def _row(settings: StageSettings, history: History, published: WeightsPublished) -> dict[str, Any]:
    entry = history.entries.get(published.weight_version)
    checkpoint = entry.checkpoint if entry else None
    return {
        "version": published.weight_version,
        "parent": published.parent_version,
        "step": published.step,
        "made_by": entry.kind.value if entry else None,
        "surviving": published.weight_version in history.surviving,
        "megabytes": round(sum(file.num_bytes for file in published.files) / 1e6, 1),
        "created_at": published.created_at.isoformat(timespec="seconds"),
        "checkpoint": checkpoint,
        "checkpoint_pruned": _is_gone(checkpoint is None or checkpoint_is_there(checkpoint, settings.storage)),
    }


def _is_gone(is_there: bool | None) -> bool | None:
    """Whether it is deleted; None if its place can't be seen from here."""
    return None if is_there is None else not is_there


def _verdict(settings: StageSettings, published: WeightsPublished) -> str:
    try:
        open_weight_store(settings.weight_store, settings.storage).fetch(published.uri, published.files)
    except CorruptWeightsError as error:
        return f"damaged or gone: {error}"
    return "complete, sums are right"


def _word(value: Any) -> Any:
    return value if not isinstance(value, bool) else "yes" if value else "no"


def _lines(value: Any) -> Text:
    """A value in a table; of several parts each on its own line."""
    if isinstance(value, dict):
        return Text("\n").join(cell(f"{name} {number:g}") for name, number in value.items())
    if isinstance(value, list):
        files = (f"{file['name']}  {file['num_bytes']} bytes  {file['sha256']}" for file in value)
        return Text("\n").join(cell(file) for file in files)
    return cell(_word(value))
