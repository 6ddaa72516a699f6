"""Values of rows without nulls: parquet gives all objects of a column all keys, those that they lack as null."""

from typing import Any


def without_nulls(value: Any) -> Any:
    """`value` without the keys of objects whose value is null. Those who read rows bound how deep they are nested."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
