"""Reads the arguments of an instruction. What a row gives wrongly is a `RewardError`: its samples stay unscored."""

from collections.abc import Mapping
from typing import Any, Final

from rollstream.schemas.errors import RewardError

Arguments = Mapping[str, Any]
"""Of one instruction, by name, as the row's JSON text gives them; without those that are null."""

MAX_NUMBER: Final = 10**9
_RELATIONS: Final = ("at least", "less than")


def number(arguments: Arguments, name: str) -> int:
    """A whole number from 0; also 3.0, which parquet makes of 3 beside nulls."""
    value = arguments.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not 0 <= value <= MAX_NUMBER or value != int(value):
        raise RewardError(f"argument {name!r} is {str(value)[:100]!r}, not a whole number from 0 to {MAX_NUMBER}")
    return int(value)


def text(arguments: Arguments, name: str) -> str:
    """A text that is not empty."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RewardError(f"argument {name!r} is {str(value)[:100]!r}, not a text")
    return value


def texts(arguments: Arguments, name: str) -> list[str]:
    """A list of texts, at least one."""
    value = arguments.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise RewardError(f"argument {name!r} is {str(value)[:100]!r}, not a list of texts")
    return value


def holds(count: int, arguments: Arguments, bound: str, relation: str = "relation") -> bool:
    """Whether a count is "at least" or "less than" the number that the arguments name."""
    named = arguments.get(relation)
    if named not in _RELATIONS:
        raise RewardError(f"argument {relation!r} is {str(named)[:100]!r}, not one of {', '.join(_RELATIONS)}")
    wanted = number(arguments, bound)
    return count >= wanted if named == "at least" else count < wanted
