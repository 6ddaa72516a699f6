"""Finds and reads the file that `--config-name` names, and those that its `defaults` name."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rollstream.process.settings.yaml_file import read_yaml
from rollstream.schemas.errors import ConfigurationError

_PACKAGED: Final = Path(__file__).parent / "packaged"
_OWN: Final = Path("conf")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SELF: Final = "_self_"
_MAX_FILES: Final = 16


def read_config(name: str) -> dict[str, Any]:
    """The values of `conf/NAME.yaml` in the working directory, else of the packaged file of this name.

    Its list `defaults` names files that come before it, or after it where `_self_` stands before them; `{streams:
    files}` there is the same as the key `streams`. References `${…}` are not resolved. Raises `ConfigurationError`.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        merged = OmegaConf.merge(*_layers(name, ()))
        found = OmegaConf.to_container(merged, resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot merge the files of {name!r}: {str(error).splitlines()[0]}") from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def packaged_names() -> list[str]:
    """Names of the packaged files."""
    return sorted(path.stem for path in _PACKAGED.glob("*.yaml"))


def _layers(name: str, readers: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    if name in readers:
        raise ConfigurationError(f"{name!r} is named by its own defaults: {' -> '.join((*readers, name))}")
    if len(readers) >= _MAX_FILES:
        raise ConfigurationError(f"defaults of {readers[0]!r} go through more than {_MAX_FILES} files: join some")
    path = _path_of(name)
    values = read_yaml(path)
    defaults = values.pop("defaults", [_SELF])
    if not isinstance(defaults, list) or len(defaults) > _MAX_FILES:
        raise ConfigurationError(f"{path}: defaults must be a list of at most {_MAX_FILES} names of files")
    for one in defaults if _SELF in defaults else [*defaults, _SELF]:
        if one == _SELF:
            yield values
        elif isinstance(one, str):
            yield from _layers(one, (*readers, name))
        elif isinstance(one, dict) and all(isinstance(value, str) for value in one.values()):
            yield one
        else:
            raise ConfigurationError(f"{path}: defaults has something that is no name of a file, no KEY: NAME either")


def _path_of(name: str) -> Path:
    stem = name.removesuffix(".yaml")
    if not _NAME.fullmatch(stem):
        raise ConfigurationError(f"{name[:100]!r} is no name of a configuration: take letters, digits, _ and -")
    own, packaged = _OWN / f"{stem}.yaml", _PACKAGED / f"{stem}.yaml"
    for path in (own, packaged):
        if path.is_file():
            return path
    raise ConfigurationError(f"there is no {own}, and none is packaged as {stem!r}: {', '.join(packaged_names())}")
