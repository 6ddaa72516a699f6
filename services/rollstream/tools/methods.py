"""The tools of a user's own class: its public methods, whose arguments and schemas follow from their signatures."""

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from rollstream.schemas.errors import ConfigurationError
from rollstream.tools.sessions import Said, mistake

RESERVED: Final = ("begin", "verify", "close")
"""Methods that are no tools: `begin(task)` before the first call, `verify(said)` and `close()` at the end."""


class Methods:
    """The tools of `kind`. Raises `ConfigurationError` if a method's signature can't be one of a tool."""

    def __init__(self, kind: Any) -> None:
        named = inspect.getmembers(kind, inspect.isfunction) if inspect.isclass(kind) else []
        functions = {name: one for name, one in named if not name.startswith("_") and name not in RESERVED}
        if not functions:
            raise ConfigurationError(f"{kind!r} is no class with public methods, which are its tools")
        self._models = {name: _arguments(name, function) for name, function in functions.items()}
        self.schemas = tuple(_schema(name, function, self._models[name]) for name, function in functions.items())

    def call(self, made: object, name: str, arguments: Mapping[str, Any]) -> Said:
        """What the method says on these arguments. What it raises is an answer too."""
        try:
            checked = self._models[name].model_validate(arguments)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10])
            return mistake(f"Invalid tool call arguments: {wrong}")
        given = {field: getattr(checked, field) for field in type(checked).model_fields}
        try:
            return Said(_text(_result(getattr(made, name)(**given))))
        except Exception as error:  # noqa: BLE001 (a tool's own error, which the model sees)
            return mistake(f"{type(error).__name__}: {error}")


def _result(found: Any) -> Any:
    """Of a coroutine what it returns: it has the process for itself."""
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def _text(found: Any) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, BaseModel):
        return found.model_dump_json()
    return json.dumps(found, ensure_ascii=False)


def _arguments(name: str, function: Any) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for field, parameter in list(inspect.signature(function).parameters.items())[1:]:  # the first is `self`
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"tool {name}: {parameter} can't be filled by name, and so by no model")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[field] = (hints.get(field, Any), default)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _schema(name: str, function: Any, model: type[BaseModel]) -> str:
    parameters = {key: value for key, value in model.model_json_schema().items() if key != "title"}
    described = {"name": name, "description": inspect.getdoc(function) or "", "parameters": parameters}
    return json.dumps({"type": "function", "function": described}, ensure_ascii=False)
