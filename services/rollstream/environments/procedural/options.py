"""Makes reasoning-gym's options, which have types, from options of a run's file, which are text."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

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


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
