"""Explains a run's file: every key, what is wrong with a file, and which values apply and why."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollstream.process.settings.base import STAGES, StageSettings, settings_class
from rollstream.process.settings.errors import Sources, holds, variable_name
from rollstream.process.settings.keys import Key, keys_of
from rollstream.process.settings.run_file import KeyPath, RunFile
from rollstream.schemas.errors import ConfigurationError
from rollstream.views.rendering import cell

SHARED: Final = "shared"
"""What the top of the file is called where a table is named."""
_ABSENT: Final = object()
_LOOK: Final[dict[str, Any]] = {
    "box": None, "show_header": False, "title_justify": "left", "title_style": "bold cyan", "padding": (0, 2, 0, 0),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKey:
    """A key of the file. `table`: its table as it is written there, `shared` at the top of the file."""

    table: str
    key: Key

    def as_plain(self) -> dict[str, Any]:
        listed = {name: value for name, value in asdict(self.key).items() if name not in ("path", "is_table", "schema")}
        return {"table": self.table, "name": self.key.path[-1], "variable": variable_name(self.key.path), **listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A value as it applies. `origin`: the line of the file, the environment variable, or `default`."""

    table: str
    name: str
    value: Any
    origin: str


def all_keys(table: str | None = None) -> list[FileKey]:
    """Every key of a run's file, or those of `table` and of the tables in it; raises `ConfigurationError`."""
    keys = [FileKey(table=_table("", key.path), key=key) for key in keys_of(StageSettings)]
    for stage in STAGES:
        keys += [FileKey(table=_table(stage, key.path), key=key) for key in _own_keys(settings_class(stage))]
    known = list(dict.fromkeys(key.table for key in keys))
    if table is not None and table not in known:
        raise ConfigurationError(f"no table {table}; there are {', '.join(known)}")
    return [key for key in keys if table is None or is_in(key.table, table)]


def keys_in(model: type[BaseModel]) -> list[FileKey]:
    """Every key of a file that `model` describes as a whole."""
    return [FileKey(table=_table("", key.path), key=key) for key in keys_of(model)]


def is_in(table: str, wanted: str) -> bool:
    """Whether `table` is `wanted` or a table in it."""
    return table == wanted or table.startswith(f"{wanted}.")


def shown_keys(keys: Iterable[FileKey]) -> RenderableType:
    """The keys by table: type, unit, bound and default in one line, the meaning below."""
    tables: dict[str, Table] = {}
    for file_key in keys:
        key = file_key.key
        table = tables.setdefault(file_key.table, Table(title=_heading(file_key.table), **_LOOK))
        table.add_row(cell(key.path[-1], "bold"), Text("\n").join([cell(_facts(key), "dim"), cell(key.meaning)]))
    return Group(*tables.values())


def shown_values(found: Iterable[Resolved]) -> RenderableType:
    """The values by table, each with its origin."""
    tables: dict[str, Table] = {}
    for one in found:
        table = tables.setdefault(one.table, Table(title=_heading(one.table), **_LOOK))
        value = "not set" if one.value is None else json.dumps(one.value, ensure_ascii=False)
        table.add_row(cell(one.name, "bold"), cell(value), cell(one.origin, "dim"))
    return Group(*tables.values())


def problems(file: RunFile) -> list[str]:
    """What is wrong with the file, for every stage that has a table there; each sentence once."""
    found = [problem for settings in _classes_in(file) for problem in settings.checked(file)[1]]
    return list(dict.fromkeys(found))


def stages_in(file: RunFile) -> list[str]:
    """The stages that have a table in the file."""
    return [stage for stage in STAGES if stage in file.document]


def resolved(file: RunFile) -> list[Resolved]:
    """Every value as it applies to the stages in the file; of a secret only that it is set."""
    if wrong := problems(file):
        raise ConfigurationError("; ".join(wrong))
    return [one for settings in _classes_in(file) for one in _resolved(settings, file)]


def _resolved(settings: type[StageSettings], file: RunFile) -> Iterator[Resolved]:
    values, _ = settings.checked(file)
    if values is None:
        return
    shown, sources = values.resolved(), settings.sources(file)
    for key in _own_keys(settings) if settings.table else keys_of(settings):
        value = _value_at(shown, key.path)
        if value is not _ABSENT and (key.is_open or not key.is_table or value is None):
            table = _table(settings.table, key.path)
            yield Resolved(table=table, name=key.path[-1], value=value, origin=_origin(key.path, sources))


def _classes_in(file: RunFile) -> list[type[StageSettings]]:
    return [StageSettings, *(settings_class(stage) for stage in STAGES if stage in file.document)]


def _own_keys(settings: type[StageSettings]) -> list[Key]:
    return [key for key in keys_of(settings) if key.path[0] not in StageSettings.model_fields]


def _origin(path: KeyPath, sources: Sources) -> str:
    if (variable := sources.variable_of(path)) is not None:
        return variable
    keys = sources.in_file(path)
    return sources.file.place_of(keys) if holds(sources.file.document, keys) else "default"


def _value_at(values: Any, path: KeyPath) -> Any:
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return _ABSENT
        values = values[name]
    return values


def _table(stage: str, path: KeyPath) -> str:
    return ".".join([stage] * bool(stage) + list(path[:-1])) or SHARED


def _heading(table: str) -> str:
    return "\nat the top of the file" if table == SHARED else f"\n\\[{table}]"


def _facts(key: Key) -> str:
    default = "" if key.default is None else f"default {json.dumps(key.default, ensure_ascii=False)}"
    return ", ".join(filter(None, (key.type, key.unit, key.bound, "required" if key.is_required else default)))
