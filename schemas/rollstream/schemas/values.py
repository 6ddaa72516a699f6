"""Values of rows, the same whatever format they were read from.

JSON tells 72 from 72.0 only by chance, a column of a table widens 72 beside 0.5 or a null, and decimal numbers are a
type of their own in parquet. So a whole number is an integer, and any other number a float.
"""

import json
from decimal import Decimal
from typing import Any

from rollstream.schemas.bounds import MAX_COUNT


def number_of(value: Decimal) -> int | float | None:
    """A decimal number as JSON has one: exact if it is whole, else the nearest float; None if it is not finite."""
    if not value.is_finite():
        return None
    return int(value) if value == value.to_integral_value() else float(value)


def with_whole_numbers(value: Any) -> Any:
    """`value` with an integer in the place of each float up to 2**53 that is whole, also within lists and objects."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MAX_COUNT else value
    if isinstance(value, dict):
        return {name: with_whole_numbers(inner) for name, inner in value.items()}
    return [with_whole_numbers(inner) for inner in value] if isinstance(value, list | tuple) else value


def text_of(value: Any) -> str:
    """A text as it is, anything else as JSON: what verifiers compare with, and what records carry as metadata.

    Takes what pandas and pyarrow give too: numpy's arrays and numbers, decimals, dates.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, str) else json.dumps(with_whole_numbers(value), ensure_ascii=False, default=_json)


def _json(value: Any) -> Any:
    if isinstance(value, Decimal):
        return number_of(value)
    return with_whole_numbers(value.tolist()) if hasattr(value, "tolist") else str(value)
