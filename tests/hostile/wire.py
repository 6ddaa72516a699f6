"""Writes records that no model of ours would make: any value in any field, as long as Avro can carry it.

Avro writes a string as it writes bytes, and an enum as it writes an int. So a field whose type is exchanged for the
other one takes bytes that are no UTF-8, and symbols that do not exist.
"""

import copy
import io
import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import fastavro

from rollstream.schemas.record import Record
from rollstream.schemas.registry import PackagedRegistry
from rollstream.schemas.topics import Topic

Path = tuple[str | int, ...]
Fields = dict[str, Any]
Schema = Any


@cache
def schema_of(topic: Topic[Any]) -> Schema:
    """The packaged schema of a topic's record, each named type written out where it is used."""
    assert topic.record is not None
    text = (files("rollstream.schemas") / "avro" / f"{topic.record.__name__}.avsc").read_text()
    return _written_out(json.loads(text), {})


def encoded(topic: Topic[Any], fields: Fields) -> bytes:
    """The wire bytes of `fields`, whatever the models say of them."""
    return _written(topic, fields, _parsed(topic))


def _written(topic: Topic[Any], fields: Fields, parsed: Schema) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, fields)
    return b"\0" + PackagedRegistry().id_of(topic).to_bytes(4, "big") + body.getvalue()


@cache
def _parsed(topic: Topic[Any]) -> Schema:
    return fastavro.parse_schema(_named_once(schema_of(topic)))


def fields_of(record: Record) -> Fields:
    """A record as the writer takes it, with lists that can be changed."""

    def thawed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: thawed(part) for key, part in value.items()}
        return [thawed(part) for part in value] if isinstance(value, list | tuple) else value

    fields: Fields = thawed(record.to_avro())
    return fields


def with_value(topic: Topic[Any], fields: Fields, path: Path, value: Any) -> bytes:
    """The same with another value at one place; bytes fit where the schema says string, an int where it says enum."""
    changed = copy.deepcopy(fields)
    _set(changed, path, value)
    # The type is exchanged in every part of a list, so only the changed part stays.
    if not isinstance(value, bytes | int):
        return encoded(topic, changed)
    return _written(
        topic, changed, _retyped(topic, path, *(("string", "bytes") if isinstance(value, bytes) else ("enum", "int")))
    )


@cache
def _retyped(topic: Topic[Any], path: Path, old: str, new: str) -> Schema:
    """The schema with another type at one place, if it has the type `old` there."""
    schema = copy.deepcopy(schema_of(topic))
    _retype(schema, path, old, new)
    return fastavro.parse_schema(_named_once(schema))


def leaves(topic: Topic[Any], fields: Fields) -> Iterator[tuple[Path, str]]:
    """Every place of a simple value in `fields`, with its Avro type; of an array only the first part counts."""
    yield from _leaves(schema_of(topic), fields, ())


def _leaves(schema: Schema, value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    kind = _kind(schema)
    if isinstance(schema, list):
        inner = next(one for one in schema if one != "null")
        yield from _leaves(inner, value, path) if value is not None else [(path, _kind(inner))]
    elif kind == "record":
        for field in schema["fields"]:
            yield from _leaves(field["type"], value[field["name"]], (*path, field["name"]))
    elif kind == "array":
        yield (path, "array")
        if value:
            yield from _leaves(schema["items"], value[0], (*path, 0))
    elif kind == "map":
        yield (path, "map")
        for key in list(value)[:1]:
            yield from _leaves(schema["values"], value[key], (*path, key))
    else:
        yield (path, kind)


def _kind(schema: Schema) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _set(fields: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        if isinstance(fields, list):
            del fields[1:]
        fields = fields[step]
    fields[path[-1]] = value


def _retype(schema: Schema, path: Path, old: str, new: str) -> None:
    """Exchange the type of one field, if it has the type `old`."""
    holder, key = _holder(schema, path)
    if isinstance(holder[key], list):
        holder, key = holder[key], next(n for n, one in enumerate(holder[key]) if one != "null")
    if _kind(holder[key]) == old:
        holder[key] = new


def _holder(schema: Schema, path: Path) -> tuple[Any, Any]:
    holder, key = {"type": schema}, "type"
    for step in path:
        inner = holder[key]
        if isinstance(inner, list):
            inner = next(one for one in inner if one != "null")
        if _kind(inner) == "record":
            holder, key = next(field for field in inner["fields"] if field["name"] == step), "type"
        else:
            holder, key = inner, "items" if _kind(inner) == "array" else "values"
    return holder, key


def _written_out(schema: Schema, known: dict[str, Schema]) -> Schema:
    if isinstance(schema, list):
        return [_written_out(one, known) for one in schema]
    if isinstance(schema, str):
        return copy.deepcopy(known[schema]) if schema in known else schema
    plain = {key: value for key, value in schema.items() if key not in ("doc", "namespace")}
    for key in ("items", "values"):
        if key in plain:
            plain[key] = _written_out(plain[key], known)
    if "fields" in plain:
        plain["fields"] = [
            {"name": field["name"], "type": _written_out(field["type"], known)} for field in plain["fields"]
        ]
    if "name" in plain:
        known[plain["name"]] = plain
    return plain


def _named_once(schema: Schema) -> Schema:
    """Each copy of a named type needs a name of its own."""
    numbers = iter(range(10**6))

    def renamed(part: Schema) -> Schema:
        if isinstance(part, list):
            return [renamed(one) for one in part]
        if not isinstance(part, dict):
            return part
        changed = {key: renamed(value) if key in ("type", "items", "values") else value for key, value in part.items()}
        if "fields" in part:
            changed["fields"] = [{**field, "type": renamed(field["type"])} for field in part["fields"]]
        if part.get("type") in ("record", "enum", "fixed"):
            changed["name"] = f"{part['name']}{next(numbers)}"
        return changed

    return renamed(schema)
