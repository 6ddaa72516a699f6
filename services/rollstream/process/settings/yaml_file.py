"""Reads a YAML file of settings that a person names: a bounded one, without aliases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rollstream.schemas.errors import ConfigurationError

_MAX_BYTES: Final = 2**20
_MAX_DEPTH: Final = 100


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file. Raises `ConfigurationError` that names the file, and the line where it can't be read."""
    from yaml import SafeLoader, YAMLError, parse, safe_load

    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ConfigurationError(f"{path} has more than {_MAX_BYTES} bytes: split it, or leave rows out")
        _refuse_large(path, parse(text, SafeLoader))
        found = safe_load(text)
    except (OSError, YAMLError, UnicodeError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is no mapping from names to values")
    return found


def _refuse_large(path: Path, events: Iterator[Any]) -> None:
    """A few lines of aliases of aliases are gigabytes, and 10 KB of brackets take minutes."""
    from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ConfigurationError(f"{path} is nested more than {_MAX_DEPTH} deep: make it flatter")
        if isinstance(event, AliasEvent):
            raise ConfigurationError(f"{path} has YAML aliases (*name): write `${{place}}` instead")
