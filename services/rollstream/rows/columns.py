"""The types of the columns of a parquet file, found from rows whose fields may differ. The rows are JSON values.

A column whose values do not agree over the rows, or that parquet can't hold, becomes text: then all its values are
written as JSON. A column of whole numbers and fractions holds floats. The column's own metadata say so, and whoever
reads the file here gets the values as they were: 72 beside 0.5 is no 72.0. Text that only looks like JSON is never
touched.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow

from rollstream.process.terminal import shown
from rollstream.schemas.errors import ConfigurationError, UnfitColumnError

MAX_COLUMNS: Final = 10_000
MAX_STRUCT_FIELDS: Final = 200
"""With more names an object is a map from keys of the rows, not a structure: it becomes JSON text."""
MAX_DEPTH: Final = 20
"""Of lists and structures in each other; deeper ones become JSON text. Readers take 64 in Arrow, 50 in parquet."""

_MARK: Final = b"rollstream.values"
_JSON: Final = b"json"
"""Marks a column of JSON text."""
_WIDENED: Final = b"widened"
"""Marks a column in which floats hold integers too."""

Row = Mapping[str, Any]


class Columns:
    """The names and types of all columns of the rows that were seen."""

    def __init__(self) -> None:
        self._types: dict[str, pyarrow.DataType] = {}
        self._as_json: set[str] = set()
        self._widened: set[str] = set()

    def see(self, rows: Sequence[Row]) -> None:
        """Extend the types so that they hold these rows too.

        Raises `ConfigurationError` beyond `MAX_COLUMNS`: a file may have other names in each row.
        """
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            known = self._types.get(name, pyarrow.null())
            found = None if name in self._as_json else _inferred(values)
            merged = None if found is None else _merged(known, found)
            if merged is None or _num_fields(merged) > MAX_STRUCT_FIELDS:
                self._as_json.add(name)
            elif _holds_integer(merged, values) or _is_widened(known, merged):
                self._widened.add(name)
            self._types[name] = pyarrow.string() if name in self._as_json else merged
            if len(self._types) > MAX_COLUMNS:
                raise ConfigurationError(
                    f"the rows have more than {MAX_COLUMNS} different columns, {shown(name)} is one of "
                    "them: write .jsonl, or put into one object what has other names in each row"
                )

    def table(self, rows: Sequence[Row]) -> pyarrow.Table:
        """The rows as a table of these columns.

        Raises `UnfitColumnError` if a value does not fit, as 2**60 does not into a column with fractions: then the
        column became JSON text, and tables that were made before are of other types.
        """
        return pyarrow.table({name: self._array(name, rows) for name in self._types}, schema=self.schema)

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns, in the order in which they were first seen. One without a value holds text."""
        return pyarrow.schema(
            [pyarrow.field(name, _written(kind), metadata=self._mark(name)) for name, kind in self._types.items()]
        )

    def _mark(self, name: str) -> dict[bytes, bytes] | None:
        if name in self._as_json:
            return {_MARK: _JSON}
        return {_MARK: _WIDENED} if name in self._widened else None

    def _array(self, name: str, rows: Sequence[Row]) -> pyarrow.Array:
        values = [row.get(name) for row in rows]
        if name in self._as_json:
            return pyarrow.array([_json(value) for value in values], pyarrow.string())
        try:
            return pyarrow.array(values, _written(self._types[name]))
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            self._as_json.add(name)
            self._types[name] = pyarrow.string()
            raise UnfitColumnError(name) from error


def is_json_text(field: pyarrow.Field) -> bool:
    """Whether a column's values are JSON that was written here as text."""
    is_text = pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
    return is_text and _marked(field, _JSON)


def is_widened(field: pyarrow.Field) -> bool:
    """Whether whole floats of a column were integers when it was written here."""
    return _marked(field, _WIDENED)


def _marked(field: pyarrow.Field, mark: bytes) -> bool:
    return bool((field.metadata or {}).get(_MARK) == mark)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _inferred(values: Sequence[Any]) -> pyarrow.DataType | None:
    try:
        kind = pyarrow.array(values).type
        return kind if _is_writable(kind) else None
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _merged(one: pyarrow.DataType, other: pyarrow.DataType) -> pyarrow.DataType | None:
    """The type that holds the values of both; None if there is none."""
    types = pyarrow.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if {one, other} == {pyarrow.int64(), pyarrow.float64()}:
        return pyarrow.float64()
    if types.is_list(one) and types.is_list(other):
        inner = _merged(one.value_type, other.value_type)
        return None if inner is None else pyarrow.list_(inner)
    if types.is_struct(one) and types.is_struct(other):
        return _merged_struct(one, other)
    return None


def _merged_struct(one: pyarrow.StructType, other: pyarrow.StructType) -> pyarrow.DataType | None:
    fields = {field.name: field.type for field in one}
    for field in other:
        kind = _merged(fields.get(field.name, pyarrow.null()), field.type)
        if kind is None:
            return None
        fields[field.name] = kind
    return pyarrow.struct(list(fields.items()))


def _holds_integer(kind: pyarrow.DataType, values: Iterable[Any]) -> bool:
    """Whether a value of the type has an integer where the type has a float."""
    types, present = pyarrow.types, [value for value in values if value is not None]
    if types.is_floating(kind):
        return any(isinstance(value, int) for value in present)
    if types.is_list(kind):
        return _holds_integer(kind.value_type, chain.from_iterable(present))
    if types.is_struct(kind):
        return any(_holds_integer(field.type, [value.get(field.name) for value in present]) for field in kind)
    return False


def _is_widened(before: pyarrow.DataType, after: pyarrow.DataType) -> bool:
    """Whether there is an integer in `before` where `after` has a float."""
    types = pyarrow.types
    if types.is_list(before) and types.is_list(after):
        return _is_widened(before.value_type, after.value_type)
    if types.is_struct(before) and types.is_struct(after):
        return any(_is_widened(field.type, after.field(field.name).type) for field in before)
    return bool(types.is_integer(before) and types.is_floating(after))


def _inner(kind: pyarrow.DataType) -> list[pyarrow.DataType]:
    return [kind.field(number).type for number in range(kind.num_fields)]


def _is_writable(kind: pyarrow.DataType, depth: int = MAX_DEPTH) -> bool:
    """Whether it is not too deep, and without a structure of no fields, which parquet does not have."""
    if not (inner := _inner(kind)):
        return not pyarrow.types.is_struct(kind)
    return depth > 0 and all(_is_writable(one, depth - 1) for one in inner)


def _num_fields(kind: pyarrow.DataType) -> int:
    own = kind.num_fields if pyarrow.types.is_struct(kind) else 0
    return own + sum(map(_num_fields, _inner(kind)))


def _written(kind: pyarrow.DataType) -> pyarrow.DataType:
    """`kind` with text where no value told a type: other files of the same columns then have the same types."""
    if pyarrow.types.is_null(kind):
        return pyarrow.string()
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_written(kind.value_type))
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([(field.name, _written(field.type)) for field in kind])
    return kind
