"""Explains what is wrong with settings: where the value stands, what it is, the bound, and what to change.

No message holds a secret: values are shown only of keys that exist and hold none.
"""

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from rollstream.process.masking import may_name_a_secret
from rollstream.process.settings.keys import Key, key_at, keys_of, names_below
from rollstream.process.settings.run_file import RunFile
from rollstream.schemas.addresses import may_hold_a_password, quoted_if_plain

PREFIX: Final = "ROLLSTREAM_"
_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the values of one settings class come from.

    `own`: the stage's table of the file, called `table`. `environment`: what the variables say, nested as the settings
    are. `tables`: the stages' tables, and the names of the keys of each.
    """

    file: RunFile
    table: str
    own: Mapping[str, Any] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    tables: Mapping[str, Sequence[str]]

    def variable_of(self, path: Sequence[str]) -> str | None:
        """The environment variable that gives the value at `path`; None if the file gives it."""
        if not holds(self.environment, path):
            return None
        names = {name.upper(): name for name in os.environ}
        around = (variable_name(path[:length]) for length in range(len(path), 0, -1))
        below = (name for name in names if name.startswith(f"{variable_name(path)}__"))
        return next((names[name] for name in (*around, *below) if name in names), None)

    def place_of(self, path: Sequence[str]) -> str:
        """Where the value at `path` stands, for the beginning of an error."""
        if (variable := self.variable_of(path)) is not None:
            return f"environment variable {variable}"
        keys = self.in_file(path)
        return f"{self.file.place_of(keys)}: {'.'.join(keys)}"

    def in_file(self, path: Sequence[str]) -> tuple[str, ...]:
        """The path within the file: below the stage's table, or at the top."""
        return (self.table, *path) if path[0] in self.own else tuple(path)


def variable_name(path: Sequence[str]) -> str:
    """The environment variable of a key: `ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS`."""
    return PREFIX + "__".join(path).upper()


def explained(error: ValidationError, model: type[BaseModel], sources: Sources) -> Iterator[str]:
    """One sentence for each problem."""
    keys = keys_of(model)
    for problem in error.errors(include_url=False):
        path = tuple(str(part) for part in problem["loc"])
        if problem["type"] == "default_factory_not_called":  # the invalid field that it depends on is listed itself
            continue
        if not path:  # a rule about several fields; its message names them
            yield f"{sources.file.place_of([sources.table])}: {_plain(problem['msg'])}"
        elif problem["type"] == "missing":
            yield _missing(path, keys, sources)
        elif problem["type"] == "extra_forbidden":
            yield _unknown(path, keys, sources)
        else:
            yield f"{sources.place_of(path)}: {_plain(problem['msg'])}{_got(problem['input'], key_at(keys, path))}"


def bad_json(model: type[BaseModel]) -> Iterator[str]:
    """One sentence for each variable that stands for a whole table or list of `model` and is not valid JSON."""
    composed = {variable_name(key.path): key for key in keys_of(model) if key.is_table or key.type.startswith("list")}
    for name, value in os.environ.items():
        key = composed.get(name.upper())
        if key is None:
            continue
        try:
            json.loads(value)
        except json.JSONDecodeError as error:
            one_by_one = f" or set its keys one by one, as {name}__<KEY>" if key.is_table else ""
            yield (
                f"environment variable {name} is not valid JSON ({error.msg}, at character {error.pos + 1}): it stands "
                f"for a whole {key.type}; correct it{one_by_one}"
            )


def refusals(values: Any, sources: Sources, above: tuple[str, ...] = ()) -> Iterator[str]:
    """One sentence for each value of the settings, as `model_dump` gives them, that must not stand where it does."""
    if isinstance(values, Mapping):
        for name, below in values.items():
            yield from refusals(below, sources, (*above, name))
        return
    # Neither a record nor a library holds a larger number.
    if isinstance(values, int) and not -(2**63) <= values < 2**63:
        yield f"{sources.place_of(above)}: does not fit into 64 bits; lower it"
    if isinstance(values, str | Path) and may_hold_a_password(str(values)):
        yield (
            f"{sources.place_of(above)}: looks like an address with a user, password or query, which does not belong "
            "here; it is not shown, since it may hold a secret"
        )
    if isinstance(values, str) and may_name_a_secret(above[-1]):
        yield (
            f"{sources.place_of(above)}: its name says that it may be a secret, but everybody who reads the log or a "
            "topic would see it; write it as an option of the declared agent, [agents.NAME] options, which is never "
            "shown"
        )


def shown(value: Any) -> str:
    """A value that is no secret, for an error: numbers and a few plain words as they are, of others what they are."""
    if isinstance(value, str):
        return quoted_if_plain(value)
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else repr(value)[:_LONGEST_SHOWN]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The name that looks like `name`, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


def _missing(path: tuple[str, ...], keys: tuple[Key, ...], sources: Sources) -> str:
    key = key_at(keys, path)
    meaning = f" ({key.meaning})" if key else ""
    # The shared keys stand at the top; a stage's own ones, and those in their tables, below the stage's table.
    is_shared = path[0] in sources.tables.get("", ())
    keys_in_file = path if is_shared or not sources.table else (sources.table, *path)
    where = f"in [{'.'.join(keys_in_file[:-1])}]" if keys_in_file[1:] else "at the top of the file"
    return (
        f"{sources.file.place_of(keys_in_file)}: {path[-1]} is missing {where}{meaning}; "
        f"write it there, or set {variable_name(path)}"
    )


def _unknown(path: tuple[str, ...], keys: tuple[Key, ...], sources: Sources) -> str:
    level = names_below(keys, path[:-1])
    if (variable := sources.variable_of(path)) is not None:
        names = [variable_name((*path[:-1], name)) for name in level]
        return f"environment variable {variable} names no setting; {did_you_mean(variable_name(path), names)}"
    place = f"{sources.place_of(path)}: no such key"
    if path[1:]:
        return f"{place}; {did_you_mean(path[-1], level)}"
    homes = [f"[{table}]" if table else "the top of the file" for table, names in sources.tables.items()
             if path[0] in names]  # fmt: skip
    if homes:
        return f"{place} here; it belongs to {' or '.join(homes)}"
    known = level if path[0] in sources.own else [*sources.tables.get("", level), *filter(None, sources.tables)]
    return f"{place}; {did_you_mean(path[0], known)}"


def _got(value: Any, key: Key | None) -> str:
    if key is None or key.is_secret or key.is_open or isinstance(value, Mapping):
        return ""
    # Where a table should be, any text may be a secret.
    return ", got a text" if key.is_table and isinstance(value, str) else f", got {shown(value)}"


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "must be").replace("Input should", "must")


def holds(values: Any, path: Sequence[str]) -> bool:
    """Whether the nested `values` have something at `path`."""
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True
