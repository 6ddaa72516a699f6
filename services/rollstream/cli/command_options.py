"""Makes the options of a command of the model that declares them (`process/settings/options.py`)."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from pydantic import ValidationError

from rollstream.cli.options import LARGEST, FiniteRange, LocationType, Period
from rollstream.process.settings.keys import Key, Schema, keys_of
from rollstream.process.settings.options import CommandOptions

M = TypeVar("M", bound=CommandOptions)
Command = Callable[..., None]

_PATHS: Final[Mapping[str, Mapping[str, bool]]] = {
    "existing": {"exists": True},
    "file": {"dir_okay": False},
    "directory": {"file_okay": False},
}
_FORMATS: Final[Mapping[str, click.ParamType[Any]]] = {"time": Period(), "location": LocationType()}


class Choice(click.Choice[str]):
    """One of some words, written as they are: `_` and `-` are the same in names of options alone."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """The word itself."""
        return str(choice)


def options_of(model: type[M]) -> Callable[[Command], Command]:
    """Add an option for each field of `model`, in its order. The command gets `options`, an instance of it.

    What the model refuses is refused as click refuses, with the option's name and exit code 2.
    """
    keys = [key for key in keys_of(model) if len(key.path) == 1]
    # What it shares with other commands comes last.
    classes = [vars(one).get("__annotations__", {}) for one in model.__mro__]
    keys.sort(key=lambda key: next(depth for depth, own in enumerate(classes) if key.path[0] in own))

    def decorated(command: Command) -> Command:
        @wraps(command)
        def called(**values: Any) -> None:
            given = {key.path[0]: values.pop(key.path[0]) for key in keys}
            command(options=_checked(model, given), **values)

        found: Command = called
        for key in reversed(keys):
            found = _parameter(model, key)(found)
        return found

    return decorated


def _checked(model: type[M], given: Mapping[str, Any]) -> M:
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # a rule about several options; its message names them
            raise click.UsageError(message) from error
        parameters = click.get_current_context().command.params
        refused = next(parameter for parameter in parameters if parameter.name == first["loc"][0])
        raise click.BadParameter(message, param=refused) from error


def _parameter(model: type[CommandOptions], key: Key) -> Callable[[Command], Command]:
    schema, name = key.schema, key.path[0]
    if schema.get("argument"):
        metavar = schema.get("metavar")
        return click.argument(name, type=_type(schema), required=key.is_required, metavar=metavar)
    default = key.default if schema.get("format") != "time" or key.default is None else Period.written(key.default)
    flag = f"--{name.replace('_', model.separator)}"
    return click.option(
        f"{flag}/--{schema['opposite']}" if "opposite" in schema else flag,
        name,
        **_kind(schema),
        # click takes a None that is given for a default, with which no option is missing.
        **({"required": True} if key.is_required else {"default": default}),
        help=key.meaning,
        # False, "" and () say nothing; 0 does.
        show_default=bool(default) or type(default) in (int, float),
        envvar=schema.get("variable"),
        show_envvar=True,
    )


def _kind(schema: Schema) -> dict[str, Any]:
    """Whether it is a flag, one value or several, as click's keywords."""
    if schema.get("type") == "boolean":
        return {"is_flag": True}
    if schema.get("type") != "array":
        return {"type": _type(schema)}
    several = schema.get("prefixItems")
    return {"type": _type(several[0]), "nargs": len(several)} if several else {"multiple": True}


def _type(schema: Schema) -> click.ParamType[Any]:
    match schema:
        case {"enum": values}:
            return Choice(values)
        case {"format": "path"}:
            return click.Path(path_type=Path, **_PATHS.get(schema.get("path", ""), {}))
        case {"format": "time" | "location" as name}:
            return _FORMATS[name]
        case {"type": "integer"}:
            return click.IntRange(schema.get("minimum"), schema.get("maximum", LARGEST))
        case {"type": "number"}:
            above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
            least, most = schema.get("minimum", above), schema.get("maximum", below)
            return FiniteRange(least, most, min_open=above is not None, max_open=below is not None)
    return click.STRING
