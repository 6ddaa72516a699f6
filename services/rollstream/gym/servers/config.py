"""The configuration of all servers: YAML files, then `env.yaml`, then the words of the command line.

A file that is not there in the working directory is looked for among the packaged ones, under the same path.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollstream.gym.packaged_files import packaged_or_own
from rollstream.process.masking import may_name_a_secret, without_values
from rollstream.process.settings.overrides import overridden
from rollstream.process.settings.yaml_file import read_yaml
from rollstream.schemas.addresses import may_hold_a_password, without_credentials
from rollstream.schemas.errors import ConfigurationError

ENV_FILE: Final = "env.yaml"
"""Addresses and keys that the files refer to as `${policy_base_url}`."""
_PATHS: Final = re.compile(r"(?:\+\+|\+|)config_paths=(?P<value>.*)", re.DOTALL)
_MAX_FILES: Final = 64
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
    files = [read_yaml(packaged_or_own(Path(path))) for path in found]
    if Path(ENV_FILE).exists():
        files.append(read_yaml(Path(ENV_FILE)))
    try:
        base = OmegaConf.to_container(OmegaConf.merge(*files), resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot merge {', '.join(found)}: {str(error).splitlines()[0]}") from error
    assert isinstance(base, dict)
    return overridden(others, list(map(str, base)), {str(name): value for name, value in base.items()})


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with stars for what a name says is a secret, in another setting too, and in URLs."""
    hidden = set(secrets_of(config))

    def shown(value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: shown(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [shown(one, name) for one in value]
        if value and may_name_a_secret(name):
            return _HIDDEN
        if not isinstance(value, str):
            return value
        return without_values(hidden, without_credentials(value) if may_hold_a_password(value) else value)

    return {key: shown(one, key) for key, one in config.items()}


def secrets_of(value: Any, name: str = "") -> Iterator[str]:
    """The texts that `without_secrets` hides."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from secrets_of(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from secrets_of(one, name)
    elif isinstance(value, str) and value and may_name_a_secret(name):
        yield value
