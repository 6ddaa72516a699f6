"""Bytes as a client writes them that has a schema and none of our models."""

import copy
import io
from collections.abc import Mapping
from typing import Any

import fastavro

from rollstream.schemas.registry import PackagedRegistry, Schema, current_schema
from rollstream.schemas.topics import Topic


def avro_bytes(schema: Any, plain: Any) -> bytes:
    """`plain` by this schema, without a header."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(copy.deepcopy(schema)), plain)
    return buffer.getvalue()


def wire(schema_id: int, schema: Schema, plain: Mapping[str, Any]) -> bytes:
    """The same in Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + avro_bytes(schema, plain)


def wire_of(topic: Topic[Any], plain: Mapping[str, Any]) -> bytes:
    """By the newest schema of a topic."""
    assert topic.record is not None
    return wire(PackagedRegistry().id_of(topic), current_schema(topic.record), plain)
