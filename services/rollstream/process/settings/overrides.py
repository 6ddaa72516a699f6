"""The words of a command line with Hydra's grammar: `+key=value`, `++key=value`, `key=value` and `~key`.

Values are YAML, by OmegaConf: `limit=null`, `+a.b=[1, 2]`, `+path=${oc.env:HOME}/rows.jsonl`. `+` adds a key that no
word before it has set, `++` sets it whatever was, `~` takes it away. A key without a sign must be one that the command
knows.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rollstream.schemas.addresses import without_addresses
from rollstream.schemas.errors import ConfigurationError

_WORD: Final = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[A-Za-z_][\w.\[\]-]*)(?:=(?P<value>.*))?", re.DOTALL)
_MAX_WORDS: Final = 1000
_TOLD: Final = 200


def overridden(
    words: Sequence[str], known: Collection[str] | None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`base` with the values that `words` set, as plain dicts and lists; `known`: keys that need no `+`, None: all.

    Raises `ConfigurationError` that names the word, or the place of a reference `${…}` to what is not there.
    """
    return resolved(unresolved(words, known, base))


def unresolved(
    words: Sequence[str], known: Collection[str] | None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The same with its references `${…}` as they stand."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if len(words) > _MAX_WORDS:
        raise ConfigurationError(f"{len(words)} words are more than {_MAX_WORDS}: put values into a file")
    config = OmegaConf.create(dict(base or {}))
    for word in words:
        try:
            _apply(config, word, known)
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigurationError(f"cannot read {_told(word)}: {str(error).splitlines()[0][:_TOLD]}") from error
    return _named(OmegaConf.to_container(config, resolve=False))


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the references stand for. Raises `ConfigurationError` that names the place of one."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return _named(OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True))
    except (OmegaConfBaseException, RecursionError) as error:
        place = getattr(error, "full_key", None) or "the values"
        said = f"cannot resolve {place}: {str(error).splitlines()[0]}"
        raise ConfigurationError(f"{said}: set it with +KEY=VALUE, or correct the name") from error


def _named(found: Any) -> dict[str, Any]:
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def _apply(config: Any, word: str, known: Collection[str] | None) -> None:
    from omegaconf import OmegaConf

    match = _WORD.fullmatch(word)
    if match is None:
        raise ConfigurationError(f"cannot read {_told(word)}: expected +key=value, ++key=value, key=value or ~key")
    sign, key, value = match["sign"], match["key"], match["value"]
    if sign == "~":
        _remove(config, key)
        return
    if value is None:
        raise ConfigurationError(f"{_told(word)} has no value: write {sign}{key}=VALUE, or {sign}{key}=null for none")
    if sign == "" and known is not None and key.partition(".")[0] not in known:
        raise ConfigurationError(f"no key {key!r}: write +{key}=… to add one; known are {', '.join(sorted(known))}")
    if sign == "+" and OmegaConf.select(config, key, throw_on_missing=False) is not None:
        raise ConfigurationError(f"{key!r} was set before {_told(word)}: write ++{key}=… to set it again")
    # Not resolved yet: it may name a key that a later word sets.
    given = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]), resolve=False)
    assert isinstance(given, dict)
    OmegaConf.update(config, key, given["value"], merge=False, force_add=True)


def _told(word: str) -> str:
    """The word for an error: its start, without what may be a password in it."""
    return repr(without_addresses(word[:_TOLD]))


def _remove(config: Any, key: str) -> None:
    from omegaconf import OmegaConf

    above, _, name = key.rpartition(".")
    place = OmegaConf.select(config, above) if above else config
    if place is None or name not in place:
        raise ConfigurationError(f"~{key}: there is no {key!r} to take away")
    del place[name]
