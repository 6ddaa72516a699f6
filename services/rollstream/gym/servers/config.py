"""The configuration of all servers: YAML files, then `env.yaml`, then the words of the command line.

A file that is not there in the working directory is looked for among the packaged ones, under the same path. A file may
name files that it adds to, as its own `config_paths`; `env.yaml` may name those that the command line does not.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollstream.gym.packaged_files import packaged_or_own
from rollstream.gym.servers.directives import made
from rollstream.process.masking import may_name_a_secret, without_values
from rollstream.process.settings.overrides import overridden, resolved, unresolved
from rollstream.process.settings.yaml_file import read_yaml
from rollstream.schemas.addresses import may_hold_a_password, without_credentials
from rollstream.schemas.errors import ConfigurationError

ENV_FILE: Final = "env.yaml"
"""Addresses and keys that the files refer to as `${policy_base_url}`."""
_CONFIG_PATHS: Final = "config_paths"
_PATHS: Final = re.compile(rf"(?:\+\+|\+|){_CONFIG_PATHS}=(?P<value>.*)", re.DOTALL)
_MAX_FILES: Final = 64
_HIDDEN: Final = "***"


def merged(words: Sequence[str]) -> dict[str, Any]:
    """The configuration that `words` describe, with every `${…}` resolved.

    Raises `ConfigurationError` that names the file, the word, or the place of a reference to what is not there.
    """
    paths = [word for word in words if _PATHS.fullmatch(word)]
    others = [word for word in words if not _PATHS.fullmatch(word)]
    base = joined(overridden(paths, {_CONFIG_PATHS}).get(_CONFIG_PATHS))
    return resolved(made(unresolved(others, list(base), base)))


def joined(paths: Any) -> dict[str, Any]:
    """What files hold, and `env.yaml` over them, with references as they stand. `paths` None: those of `env.yaml`."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    environment = read_yaml(Path(ENV_FILE)) if Path(ENV_FILE).exists() else {}
    named = environment.pop(_CONFIG_PATHS, None)
    if not (paths or named):
        raise ConfigurationError('name the files of the servers: "+config_paths=[FILE,FILE]"')
    seen: set[str] = set()
    files = [*_files(paths or named, "the command line" if paths else ENV_FILE, seen), environment]
    try:
        found = OmegaConf.to_container(OmegaConf.merge(*files), resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot merge {', '.join(sorted(seen))}: {str(error).splitlines()[0]}") from error
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def _files(paths: Any, where: str, seen: set[str]) -> Iterator[dict[str, Any]]:
    """What the files hold, each one behind those that it names, and once."""
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ConfigurationError(f"{_CONFIG_PATHS} of {where} must be a list of files: [FILE,FILE]")
    for path in paths:
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > _MAX_FILES:
            raise ConfigurationError(f"config_paths names more than {_MAX_FILES} files: join some")
        found = read_yaml(packaged_or_own(Path(path)))
        yield from _files(found.pop(_CONFIG_PATHS, []), path, seen)
        yield found


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
