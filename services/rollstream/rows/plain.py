"""Values of other libraries, and of parquet's columns, as JSON values."""

import base64
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rollstream.schemas.values import number_of


def plain(value: Any) -> Any:  # noqa: PLR0911 (one kind of value a line)
    """`value` as a JSON value. Bytes become their text, or base64 if they are none."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):
        return number_of(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def without_nulls(value: Any) -> Any:
    """`value` without the keys of objects whose value is null: parquet gives all objects of a column all keys.

    Those who read rows bound how deep they are nested.
    """
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
