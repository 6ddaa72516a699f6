"""The configuration of all servers: YAML files, then `env.yaml`, then the words of the command line.

A file that is not there in the working directory is looked for among the packaged ones, under the same path.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollstream.gym.overrides import overridden
from rollstream.gym.packaged_files import packaged_or_own
from rollstream.process.masking import may_name_a_secret
from rollstream.schemas.errors import ConfigurationError

ENV_FILE: Final = "env.yaml"
"""Addresses and keys that the files refer to as `${policy_base_url}`."""
_PATHS: Final = re.compile(r"(?:\+\+|\+|)config_paths=(?P<value>.*)", re.DOTALL)
_MAX_FILES: Final = 64
_MAX_BYTES: Final = 2**20
_MAX_DEPTH: Final = 100
_HIDDEN: Final = "***"


def merged(words: Sequence[str]) -> dict[str, Any]:
    """The configuration that `words` describe, with every `${…}` resolved.

    Raises `ConfigurationError` that names the file, the word, or the place of a reference to what is not there.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    paths = [word for word in words if _PATHS.fullmatch(word)]
    others = [word for word in words if not _PATHS.fullmatch(word)]
    found = overridden(paths, {"config_paths"}).get("config_paths")
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise ConfigurationError('name the files of the servers: "+config_paths=[FILE,FILE]"')
    if len(found) > _MAX_FILES:
        raise ConfigurationError(f"config_paths names {len(found)} files, at most {_MAX_FILES}: join some")
    files = [_read(packaged_or_own(Path(path))) for path in found]
    if Path(ENV_FILE).exists():
        files.append(_read(Path(ENV_FILE)))
    try:
        base = OmegaConf.to_container(OmegaConf.merge(*files), resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot merge {', '.join(found)}: {str(error).splitlines()[0]}") from error
    assert isinstance(base, dict)
    return overridden(others, list(map(str, base)), {str(name): value for name, value in base.items()})


def without_secrets(value: Any, name: str = "") -> Any:
    """The same, with stars for what a name says is a secret."""
    if isinstance(value, Mapping):
        return {key: without_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [without_secrets(one, name) for one in value]
    return _HIDDEN if value and may_name_a_secret(name) else value


def secrets_of(value: Any, name: str = "") -> Iterator[str]:
    """The texts that `without_secrets` hides."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from secrets_of(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from secrets_of(one, name)
    elif isinstance(value, str) and may_name_a_secret(name):
        yield value


def _read(path: Path) -> dict[str, Any]:
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
        raise ConfigurationError(f"{path} is no mapping from names of servers")
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
