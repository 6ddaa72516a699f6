"""Only schemas that a check has passed are read with: the library would crash or never end on others."""

import copy
from typing import Any

import pytest

from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.readable import MAX_DEPTH, MAX_TYPES, why_unreadable
from rollstream.schemas.registry import PackagedRegistry, Schema, current_schema, manifest
from rollstream.schemas.topics import PROMPTS, Topic
from tests.harness.builders import a_prompt
from tests.harness.strange_schemas import STRANGE, record
from tests.harness.wire_bytes import avro_bytes

FOREIGN = 900


class OneMore:
    """The packaged registry, and a schema that somebody registered besides."""

    def __init__(self, schema: Schema) -> None:
        self._packaged, self._schema = PackagedRegistry(), schema

    def id_of(self, topic: Topic[Any]) -> int:
        return self._packaged.id_of(topic)

    def schema_of(self, schema_id: int) -> Schema:
        return self._schema if schema_id == FOREIGN else self._packaged.schema_of(schema_id)


def with_field(kind: Any) -> Schema:
    """The schema of prompts with one field more, at its beginning."""
    schema = copy.deepcopy(current_schema(a_prompt().__class__))
    schema["fields"].insert(0, {"name": "extra", "type": kind})
    return schema


def decoded(schema: Schema, extra: bytes) -> Any:
    body = AvroCodec(PROMPTS).encode(a_prompt())[5:]
    return AvroCodec(PROMPTS, OneMore(schema)).decode(b"\0" + FOREIGN.to_bytes(4, "big") + extra + body)


def test_every_schema_of_ours_may_be_read_with() -> None:
    assert [entry.record for entry in manifest() if why_unreadable(entry.schema)] == []


@pytest.mark.parametrize("name", STRANGE)
def test_a_schema_that_would_hurt_whoever_reads_with_it_is_refused(name: str) -> None:
    made = STRANGE[name]
    assert why_unreadable(made.schema) is not None
    with pytest.raises(DecodeError, match="prompts: schema 900 is not read with: "):
        AvroCodec(PROMPTS, OneMore(made.schema)).decode(b"\0" + FOREIGN.to_bytes(4, "big") + made.body)


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("long", avro_bytes("long", 7)),
        (["null", "string"], b"\2\4ab"),
        ({"type": "array", "items": "double"}, avro_bytes("long", 1) + bytes(8) + b"\0"),
        ({"type": "map", "values": "boolean"}, avro_bytes("long", 1) + b"\2a\1\0"),
        ({"type": "enum", "name": "Color", "symbols": ["RED"]}, b"\0"),
        ({"type": "long", "logicalType": "timestamp-micros"}, avro_bytes("long", 7)),
        ({"type": "fixed", "name": "Sum", "size": 4}, b"abcd"),
        (record("Inner", "string"), b"\2a"),
    ],
)
def test_a_field_that_a_newer_version_added_is_passed_over(kind: Any, extra: bytes) -> None:
    assert decoded(with_field(kind), extra) == a_prompt()


@pytest.mark.parametrize("items", ["boolean", "float", "double", {"type": "fixed", "name": "Sum", "size": 4}])
@pytest.mark.parametrize("count", [2**20, 2**60])
def test_values_that_are_not_there_are_not_passed_over_for_ever(items: Any, count: int) -> None:
    with pytest.raises(DecodeError, match=r"beyond the end|more than 1048576 values"):
        decoded(with_field({"type": "array", "items": items}), avro_bytes("long", count))


def test_a_schema_may_be_as_deep_as_the_bound_and_no_deeper() -> None:
    def nested(levels: int) -> Any:
        kind: Any = "string"
        for _ in range(levels):
            kind = {"type": "array", "items": kind}
        return record("Outer", kind)

    assert why_unreadable(nested(MAX_DEPTH - 2)) is None
    assert why_unreadable(nested(MAX_DEPTH - 1)) == f"types more than {MAX_DEPTH} deep"


def test_a_schema_may_have_as_many_types_as_the_bound_and_no_more() -> None:
    assert why_unreadable(record("Outer", *["string"] * (MAX_TYPES - 1))) is None
    assert why_unreadable(record("Outer", *["string"] * MAX_TYPES)) == f"more than {MAX_TYPES} types and fields"
