"""Which schemas of a registry are read at all. Pure.

Who may register a schema may make any. The Avro library reads in C, by recursion and without bounds: a record that
contains itself ends the process, and a list of 2^60 values that take no byte never ends. So a schema is checked before
anything is read with it. What passes has a bounded depth, and each of its values takes at least a byte.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from rollstream.schemas.errors import DecodeError
from rollstream.schemas.topics import MAX_RECORD_BYTES

MAX_DEPTH: Final = 32
"""Types within types, those that are used by their name included; ours have 7."""
MAX_TYPES: Final = 10_000
"""Types and fields, each use of a name included; ours have 120."""
_PRIMITIVES: Final = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
# What else fastavro knows costs time or memory by numbers in the schema, such as the precision of a decimal.
_LOGICAL: Final = frozenset(
    {"date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "uuid"}
)  # fmt: skip
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}(\.[A-Za-z_][A-Za-z0-9_]{0,255}){0,15}")


def why_unreadable(schema: Any) -> str | None:
    """Why nothing is read with this schema, a parsed JSON value; None if it is safe to read with."""
    try:
        if not isinstance(schema, dict) or schema.get("type") != "record":
            _refuse("it is no record")
        _Check().depth(schema, 1)
    except DecodeError as error:
        return str(error)
    return None


def _refuse(why: str) -> NoReturn:
    raise DecodeError(why)


class _Check:
    """Goes through one schema once; a type that is used by its name is as deep as where it was made."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}
        self._open: set[str] = set()
        self._count = 0

    def depth(self, schema: Any, level: int, *, in_union: bool = False) -> int:
        """How many types lie within each other here; `level` is that of `schema` in the whole."""
        self._count += 1
        if self._count > MAX_TYPES:
            _refuse(f"more than {MAX_TYPES} types and fields")
        if level > MAX_DEPTH:
            _refuse(f"types more than {MAX_DEPTH} deep")
        if isinstance(schema, str):
            return self._by_name(schema, level, in_union=in_union)
        if isinstance(schema, list):
            if in_union or not schema:
                _refuse("a union of nothing, or within a union")
            return 1 + max(self.depth(one, level + 1, in_union=True) for one in schema)
        if not isinstance(schema, dict):
            _refuse(f"a type that is a {type(schema).__name__}")
        return self._of_kind(schema, level, in_union=in_union)

    def _by_name(self, name: str, level: int, *, in_union: bool) -> int:
        if name == "null":
            return 1 if in_union else _refuse("null outside of a union: it takes no byte")
        if name in _PRIMITIVES:
            return 1
        short = name.rpartition(".")[2]
        if short in self._open:
            _refuse(f"{name[:80]} contains itself")
        if short not in self._named:
            _refuse(f"{name[:80]}, which is not made before it is used")
        if level + self._named[short] - 1 > MAX_DEPTH:
            _refuse(f"types more than {MAX_DEPTH} deep")
        return self._named[short]

    def _of_kind(self, schema: Mapping[str, Any], level: int, *, in_union: bool) -> int:
        kind, logical = schema.get("type"), schema.get("logicalType")
        if any(name.startswith("__") for name in schema):
            _refuse("a key that begins with __: fastavro would take it as parsed, with whatever types it names there")
        if logical is not None and not (isinstance(logical, str) and logical in _LOGICAL):
            _refuse(f"logical type {str(logical)[:80]!r}")
        if kind == "array":
            return 1 + self.depth(schema.get("items"), level + 1)
        if kind == "map":
            return 1 + self.depth(schema.get("values"), level + 1)
        if kind in ("record", "enum", "fixed"):
            return self._of_name(kind, schema, level)
        if isinstance(kind, str) and kind not in (*_PRIMITIVES, "null"):
            _refuse(f"a type of kind {kind[:80]!r}")
        return self.depth(kind, level + 1, in_union=in_union)

    def _of_name(self, kind: str, schema: Mapping[str, Any], level: int) -> int:
        name = schema.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            _refuse(f"a {kind} without a proper name")
        short = name.rpartition(".")[2]
        if short in self._open or short in self._named:
            _refuse(f"{name[:80]} is made twice")
        self._open.add(short)
        depth = self._of_fields(schema, level) if kind == "record" else _of_leaf(kind, schema)
        self._open.remove(short)
        self._named[short] = depth
        return depth

    def _of_fields(self, schema: Mapping[str, Any], level: int) -> int:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            _refuse("a record without fields: it takes no byte")
        deepest = 0
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                _refuse("a field without a name")
            deepest = max(deepest, self.depth(field.get("type"), level + 1))
        return 1 + deepest


def _of_leaf(kind: str, schema: Mapping[str, Any]) -> int:
    size, symbols = schema.get("size"), schema.get("symbols")
    if kind == "fixed" and not (type(size) is int and 1 <= size <= MAX_RECORD_BYTES):
        _refuse(f"a fixed of size {str(size)[:80]}, the bounds are 1 and {MAX_RECORD_BYTES}")
    if kind == "enum" and not (symbols and isinstance(symbols, list) and all(isinstance(one, str) for one in symbols)):
        _refuse("an enum without symbols")
    return 1
