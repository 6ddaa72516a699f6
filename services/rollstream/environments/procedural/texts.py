"""What reasoning-gym has with types and a run as text: the options of a data set, and what its entries hold.

An entry's metadata are written as JSON text, and read back the same. Scorers compare tuples with tuples, and look up
whole numbers as keys. JSON has neither, so they are marked: `{"$tuple": […]}`, `{"$set": […]}` and, for a mapping with
other keys than texts, `{"$pairs": [[key, value], …]}`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from rollstream.schemas.errors import RewardError

_READ: Final[dict[str, Callable[[Any], Any]]] = {"$tuple": tuple, "$set": set, "$pairs": dict}
_OURS: Final = frozenset({"seed", "size"})


def typed_options(config: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """The options as the data set's dataclass `config` takes them: JSON is read, other text stays text.

    Raises `ValueError` that names the options that there are.
    """
    known = {field.name: field for field in fields(config) if field.name not in _OURS}
    unknown = ", ".join(sorted(set(options) - set(known)))
    if unknown:
        raise ValueError(f"this dataset has no option {unknown}; it has {', '.join(sorted(known))}")
    return {name: text if known[name].type in (str, "str") else _read(text) for name, text in options.items()}


def entry_text(metadata: dict[str, Any]) -> str:
    """The metadata as JSON text. Raises `TypeError` for what can't be written."""
    return json.dumps(_marked(metadata))


def entry_metadata(text: str) -> dict[str, Any]:
    """What `entry_text` wrote. Raises `RewardError` for other texts."""
    try:
        read = json.loads(text, object_hook=_unmarked)
    except (ValueError, TypeError, RecursionError) as error:
        raise RewardError(
            f"the row's metadata 'entry_metadata' is not what this environment writes: {error}"
        ) from error
    if not isinstance(read, dict):
        raise RewardError("the row's metadata 'entry_metadata' is no JSON object")
    return read


def _marked(value: Any) -> Any:  # noqa: PLR0911 (one case a type)
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_marked(one) for one in value]
        case tuple():
            return {"$tuple": [_marked(one) for one in value]}
        case set() | frozenset():
            return {"$set": [_marked(one) for one in sorted(value)]}
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _marked(one) for key, one in value.items()}
        case dict():
            return {"$pairs": [[_marked(key), _marked(one)] for key, one in value.items()]}
    if hasattr(value, "tolist"):
        return _marked(value.tolist())
    raise TypeError(f"the entry's metadata hold a {type(value).__name__}, which JSON can't")


def _unmarked(read: dict[str, Any]) -> Any:
    if len(read) == 1:
        [(mark, value)] = read.items()
        if mark in _READ:
            return _READ[mark](value)
    return read


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
