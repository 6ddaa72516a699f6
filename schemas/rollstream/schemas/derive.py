"""Derives the Avro schema of a record from its model. A test compares it with the committed `.avsc`."""

import json
import types
import typing
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from pydantic.fields import FieldInfo

from rollstream.schemas.record import Record

NAMESPACE = "rollstream.events.v1"

_PRIMITIVES: dict[Any, Any] = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


def avro_schema(record: type[Record]) -> dict[str, Any]:
    """The Avro schema of `record`, with a doc on it and on every field. A named type is defined at its first use."""
    schema = _record(record, set())
    return {"type": "record", "name": schema.pop("name"), "namespace": NAMESPACE, **schema}


def _record(record: type[Record], named: set[str]) -> dict[str, Any]:
    named.add(record.__name__)
    doc = (record.__doc__ or "").strip().split("\n")[0]
    fields = [_field(name, field, named) for name, field in record.model_fields.items()]
    return {"type": "record", "name": record.__name__, "doc": doc, "fields": fields}


def _field(name: str, field: FieldInfo, named: set[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"name": name, "type": _type(field.annotation, named), "doc": field.description}
    if not field.is_required():
        schema["default"] = _plain(field.get_default(call_default_factory=True, validated_data={}))
    return schema


def _plain(value: Any) -> Any:
    """A default as JSON writes it: a list for a tuple, a symbol for an enum."""
    return json.loads(json.dumps(value.to_avro() if isinstance(value, Record) else value))


def _type(annotation: Any, named: set[str]) -> Any:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], named)
    if origin is np.ndarray:
        return "bytes"
    if origin in (types.UnionType, typing.Union):
        # null first: Avro takes a union's default from its first branch.
        return ["null", *(_type(part, named) for part in arguments if part is not type(None))]
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0], named)}
    if origin is dict:
        return {"type": "map", "values": _type(arguments[1], named)}
    return _plain_type(annotation, named)


def _plain_type(annotation: Any, named: set[str]) -> Any:
    if annotation is datetime:
        return {"type": "long", "logicalType": "timestamp-micros"}
    if annotation in _PRIMITIVES:
        return _PRIMITIVES[annotation]
    if annotation.__name__ in named:
        return annotation.__name__
    if issubclass(annotation, StrEnum):
        named.add(annotation.__name__)
        # The enum's default: older readers turn a symbol that they do not know into it, so symbols can be added.
        symbols = [member.value for member in annotation]
        return {"type": "enum", "name": annotation.__name__, "symbols": symbols, "default": "UNKNOWN"}
    return _record(annotation, named)
