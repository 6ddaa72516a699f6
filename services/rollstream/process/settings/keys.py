"""Lists the keys of settings classes, from the JSON schema that pydantic derives of them. There is no other list."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

_TYPES: Final[dict[tuple[str | None, str | None], str]] = {
    ("string", "path"): "path",
    ("string", "password"): "secret text",
    ("string", None): "text",
    ("integer", None): "whole number",
    ("number", None): "number",
    ("boolean", None): "true or false",
}
# What a number counts, where its name says it. Other fields say it as `json_schema_extra={"unit": …}`.
_UNITS: Final = frozenset(
    ("seconds", "bytes", "tokens", "groups", "steps", "prompts", "processes", "versions", "checkpoints", "epochs",
     "threads", "minibatches", "tries", "samples", "requests")
)  # fmt: skip
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("minLength", "{} or more characters"),
    ("pattern", "like {}"),
)

ANY_NAME: Final = "NAME"
"""In a key's path: a name of the user's choice."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `path` is its place within the class. `default` is its JSON form; None: it is left out."""

    path: tuple[str, ...]
    type: str
    unit: str
    default: Any
    is_required: bool
    bound: str
    meaning: str
    is_secret: bool
    is_table: bool
    is_open: bool
    """Whether it is a table with names of the user's choice."""
    schema: Schema
    """All that its JSON schema says."""


@cache
def keys_of(model: type[BaseModel]) -> tuple[Key, ...]:
    """Every key of `model`, those of its tables after the table's own."""
    schema = model.model_json_schema()
    return tuple(_keys(schema, schema.get("$defs", {}), (), _computed_defaults(model)))


def names_below(keys: tuple[Key, ...], path: tuple[str, ...]) -> list[str]:
    """The names of the keys directly in the table at `path`; `()` is the class itself."""
    return [key.path[-1] for key in keys if _fits(key.path[:-1], path)]


def key_at(keys: tuple[Key, ...], path: tuple[str, ...]) -> Key | None:
    """The key at `path`; for a name in an open table that table. None if there is none."""
    found = [key for size in range(len(path), 0, -1) for key in keys if _fits(key.path, path[:size])]
    return found[0] if found and (found[0].is_open or _fits(found[0].path, path)) else None


def _fits(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        known in (name, ANY_NAME) for known, name in zip(pattern, path, strict=True)
    )


def _keys(schema: Schema, defs: Schema, above: tuple[str, ...], computed: Mapping[str, Any]) -> Iterator[Key]:
    for name, given in schema["properties"].items():
        found = _resolved(given, defs)
        below = _below(found)
        is_number = found.get("type") in ("integer", "number")
        yield Key(
            path=(*above, name),
            type=_type(found),
            unit=found.get("unit", "") or (_unit(name) if is_number else ""),
            default=found.get("default", computed.get(name)),
            is_required=name in schema.get("required", ()),
            bound=_bound(found),
            meaning=found.get("description", ""),
            is_secret=any(part.get("writeOnly", False) for part in (found, below) if isinstance(part, dict)),
            is_table=found.get("type") == "object",
            is_open=isinstance(below, dict),
            schema=found,
        )
        if "properties" in found:
            yield from _keys(found, defs, (*above, name), {})
        if isinstance(below, dict) and "$ref" in below:
            yield from _keys(_resolved(below, defs), defs, (*above, name, ANY_NAME), {})


def _resolved(given: Schema, defs: Schema) -> Schema:
    """The schema of a field, with what it refers to; of `X | None` that of X."""
    one = next((part for part in given.get("anyOf", ()) if part.get("type") != "null"), given)
    target = defs[one["$ref"].rsplit("/", 1)[-1]] if "$ref" in one else one
    own = {name: value for name, value in given.items() if name not in ("anyOf", "$ref")}
    return {**target, **own}


def _below(found: Schema) -> Any:
    """What a table with names of the user's choice holds; where these have a pattern, it stands below the pattern."""
    return next(iter(found.get("patternProperties", {}).values()), found.get("additionalProperties"))


def _type(found: Schema) -> str:
    kind = found.get("type")
    if kind == "array":
        return "list of texts"
    if kind != "object":
        return _TYPES.get((kind, found.get("format")), "text")
    below = _below(found)
    if isinstance(below, dict) and "$ref" in below:
        return "table of tables"
    return f"table of {_type(below).replace('table of texts', 'table')}s" if isinstance(below, dict) else "table"


def _unit(name: str) -> str:
    return next((word for word in name.split("_") if word in _UNITS), "")


def _bound(found: Schema) -> str:
    if "const" in found:
        return f"one of {found['const']}"
    if "enum" in found:
        return f"one of {', '.join(str(value) for value in found['enum'])}"
    return ", ".join(text.format(found[name]) for name, text in _BOUNDS if name in found)


def _computed_defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The defaults that follow from the defaults of other fields, which the schema does not have."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        value = field.get_default(call_default_factory=True, validated_data=values)
        if value is not PydanticUndefined:
            values[name] = value
    return {
        name: to_jsonable_python(values[name])
        for name, field in model.model_fields.items()
        if field.default_factory is not None and not isinstance(values[name], BaseModel | dict)
    }
