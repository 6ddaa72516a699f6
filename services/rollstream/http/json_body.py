"""Reading the JSON that a stranger sends: bounded in depth and in numbers, and with one meaning for every reader."""

import json
import math
from typing import Any, Final

from pydantic_core import from_json

MOST_CONTAINERS: Final = 2**18
"""Brackets and braces in a body, those in texts too. Many small ones take 20 times their bytes, and long to read."""


def parsed(body: bytes) -> Any:
    """The value of a body; None for an empty one. Raises `ValueError`, which repeats nothing of the body."""
    if not body.strip():
        return None
    if (found := body.count(b"[") + body.count(b"{")) > MOST_CONTAINERS:
        raise ValueError(f"{found} brackets and braces, at most {MOST_CONTAINERS}: send fewer or smaller values")
    # Refuses what is nested too deeply (200), half a surrogate pair, other bytes than UTF-8, NaN, too many digits.
    from_json(body, allow_inf_nan=False)
    return json.loads(body, object_pairs_hook=_with_each_name_once, parse_float=_finite)


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of one name readers take the first or the last: what one checks another would not use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one name twice: give each name once")
    return found


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number is beyond what a double holds, 1.8e308 at most")
    return number
