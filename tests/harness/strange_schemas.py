"""Schemas that a stranger may register, and bytes that make the most of each."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_MANY: Final = b"\x80\x80\x80\x80\x80\x80\x80\x80\x20"
"""2^60, as Avro writes it."""


class Strange(NamedTuple):
    """A schema, and the bytes of a record under it, without the header."""

    schema: dict[str, Any]
    body: bytes


def record(name: str, *kinds: Any) -> dict[str, Any]:
    """A record with a field of each kind."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"field_{number}", "type": kind} for number, kind in enumerate(kinds)],
    }


def _deep(wrap: Callable[[Any], Any], levels: int) -> Any:
    kind: Any = "string"
    for _ in range(levels):
        kind = wrap(kind)
    return kind


def _chain(levels: int) -> dict[str, Any]:
    """Records each of which holds the one before by its name: shallow as text, deep as types."""
    fields: list[Any] = [record("R0", "string"), *(record(f"R{n}", f"R{n - 1}") for n in range(1, levels))]
    return record("PromptSubmitted", *fields)


def _laughs() -> dict[str, Any]:
    """Records that hold a hundred of the one before: 10^12 values that take no byte."""
    fields: list[Any] = [record("R0", *["null"] * 100), *(record(f"R{n}", *[f"R{n - 1}"] * 100) for n in range(1, 6))]
    return record("PromptSubmitted", *fields)


def _parsed(inner: dict[str, Any]) -> dict[str, Any]:
    """It says that fastavro parsed it already, and names other types than those that it shows."""
    shown = record("PromptSubmitted", record("Inner", "string"), "Inner")
    return {**shown, "__fastavro_parsed": True, "__named_schemas": {"PromptSubmitted": shown, "Inner": inner}}


STRANGE: Final[dict[str, Strange]] = {
    "contains itself": Strange(record("PromptSubmitted", "PromptSubmitted"), b""),
    "contains itself in a union": Strange(record("PromptSubmitted", ["null", "PromptSubmitted"]), b"\2" * 3_000_000),
    "contains itself in a list": Strange(
        record("PromptSubmitted", {"type": "array", "items": "PromptSubmitted"}), b"\2" * 3_000_000
    ),
    "contains itself in a map": Strange(
        record("PromptSubmitted", {"type": "map", "values": "PromptSubmitted"}), b"\2\0" * 1_500_000
    ),
    "contains itself through another": Strange(record("PromptSubmitted", record("Inner", "PromptSubmitted")), b""),
    "contains itself by its full name": Strange(
        {"namespace": "stranger", **record("PromptSubmitted", ["null", "stranger.PromptSubmitted"])}, b"\2" * 3_000_000
    ),
    "a field that contains itself": Strange(record("PromptSubmitted", record("Self", ["null", "Self"])), b"\2" * 10**6),
    "claims to be parsed, and contains itself": Strange(
        _parsed(record("Inner", ["null", "Inner"])), b"\2a" + b"\2" * 3_000_000
    ),
    "claims to be parsed, and has 2^60 nulls": Strange(
        _parsed(record("Inner", {"type": "array", "items": "null"})), b"\2a" + _MANY
    ),
    "2^60 nulls": Strange(record("PromptSubmitted", {"type": "array", "items": "null"}), _MANY),
    "2^60 nulls of a kind": Strange(record("PromptSubmitted", {"type": "array", "items": {"type": "null"}}), _MANY),
    "2^60 empty records": Strange(record("PromptSubmitted", {"type": "array", "items": record("Empty")}), _MANY),
    "2^60 records of nulls": Strange(
        record("PromptSubmitted", {"type": "array", "items": record("Nulls", "null")}), _MANY
    ),
    "2^60 fixeds of no byte": Strange(
        record("PromptSubmitted", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), _MANY
    ),
    "10^12 nulls of few types": Strange(_laughs(), b""),
    "a fixed of 2^62": Strange(record("PromptSubmitted", {"type": "fixed", "name": "F", "size": 2**62}), b""),
    "a fixed of a negative size": Strange(record("PromptSubmitted", {"type": "fixed", "name": "F", "size": -1}), b""),
    "a fixed without a size": Strange(record("PromptSubmitted", {"type": "fixed", "name": "F"}), b""),
    "a fixed of a size that is true": Strange(
        record("PromptSubmitted", {"type": "fixed", "name": "F", "size": True}), b""
    ),
    "a hundred lists deep": Strange(
        record("PromptSubmitted", _deep(lambda kind: {"type": "array", "items": kind}, 100)), b"\2" * 99
    ),
    "a hundred maps deep": Strange(
        record("PromptSubmitted", _deep(lambda kind: {"type": "map", "values": kind}, 100)), b"\2\0" * 99
    ),
    "a hundred types of types": Strange(record("PromptSubmitted", _deep(lambda kind: {"type": kind}, 100)), b""),
    "a chain of a thousand records": Strange(_chain(1000), b""),
    "a decimal of a billion digits": Strange(
        record("PromptSubmitted", {"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 10**9}),
        b"\2\x7f",
    ),
    "a duration": Strange(
        record("PromptSubmitted", {"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}), bytes(12)
    ),
    "a logical type that is a list": Strange(
        record("PromptSubmitted", {"type": "long", "logicalType": ["date"]}), b"\0"
    ),
    "a union within a union": Strange(record("PromptSubmitted", [["null", "string"], "long"]), b"\0\0"),
    "a union of nothing": Strange(record("PromptSubmitted", []), b"\0"),
    "an enum of nothing": Strange(record("PromptSubmitted", {"type": "enum", "name": "E", "symbols": []}), b"\0"),
    "an enum of numbers": Strange(record("PromptSubmitted", {"type": "enum", "name": "E", "symbols": [1, 2]}), b"\0"),
    "an enum of a text": Strange(record("PromptSubmitted", {"type": "enum", "name": "E", "symbols": "AB"}), b"\0"),
    "a type that is a number": Strange(record("PromptSubmitted", 7), b""),
    "a type that is null": Strange(record("PromptSubmitted", None), b""),
    "a kind that nobody knows": Strange(record("PromptSubmitted", {"type": "eval", "items": "string"}), b""),
    "a name that is never made": Strange(record("PromptSubmitted", "Ghost"), b""),
    "a name that is made later": Strange(record("PromptSubmitted", "Later", record("Later", "string")), b""),
    "a name that is made twice": Strange(
        record("PromptSubmitted", record("Inner", "long"), record("Inner", "string")), b""
    ),
    "a list without items": Strange(record("PromptSubmitted", {"type": "array"}), b"\2"),
    "a map without values": Strange(record("PromptSubmitted", {"type": "map"}), b"\2"),
    "fields that are a text": Strange({"type": "record", "name": "PromptSubmitted", "fields": "abc"}, b""),
    "fields that are numbers": Strange({"type": "record", "name": "PromptSubmitted", "fields": [1, 2]}, b""),
    "a field without a type": Strange({"type": "record", "name": "PromptSubmitted", "fields": [{"name": "a"}]}, b""),
    "a field whose name is a number": Strange(
        {"type": "record", "name": "PromptSubmitted", "fields": [{"name": 7, "type": "string"}]}, b""
    ),
    "no name": Strange({"type": "record", "fields": [{"name": "a", "type": "string"}]}, b""),
    "a name of escape sequences": Strange(record("\x1b[2J", "string"), b""),
    "a name of a megabyte": Strange(record("P" * 2**20, "string"), b""),
    "no record": Strange({"type": "array", "items": "string"}, b"\0"),
    "nothing": Strange({}, b""),
    "a hundred thousand fields": Strange(record("PromptSubmitted", *["string"] * 100_000), b"\0" * 1000),
}
