"""`_inherit_from`, `_copy` and `_delete_key` of NeMo Gym's configurations: an entry that is made of another one.

`b: {_inherit_from: a, …}` is what stands at `a`, with these values over it, and `a` is gone; with `_copy` it stays. A
path has dots. `_delete_key: x, y` takes keys out. `${inherit_from:a}` and `${copy:a}` are such an entry without values.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from rollstream.schemas.errors import ConfigurationError

_INHERIT: Final = "_inherit_from"
_COPY: Final = "_copy"
_DELETE: Final = "_delete_key"
_WHOLE: Final = re.compile(r"\$\{(?P<kind>inherit_from|copy):(?P<path>[^{}]*)\}")
# A copy of two copies of two copies is short to write, and has no end.
_MOST_VALUES: Final = 100_000
_MOST_DEEP: Final = 10


def made(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with all its entries made. Raises `ConfigurationError` that names the path."""
    maker = _EntryMaker(config)
    found = maker.made(config, ())
    for path in maker.inherited:
        _take_out(found, path)
    assert isinstance(found, dict)
    return found


class _EntryMaker:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._num_values = 0
        self.inherited: set[str] = set()

    def made(self, value: Any, within: tuple[str, ...]) -> Any:
        """`within`: the paths of what is being made, so that none is made of itself."""
        self._num_values += 1
        if self._num_values > _MOST_VALUES:
            raise ConfigurationError(f"{_COPY} and {_INHERIT} make more than {_MOST_VALUES} values: copy less")
        if isinstance(value, list):
            return [self.made(one, within) for one in value]
        if isinstance(value, str) and (whole := _WHOLE.fullmatch(value)):
            value = {_INHERIT if whole["kind"] == "inherit_from" else _COPY: whole["path"]}
        return self._entry(value, within) if isinstance(value, Mapping) else value

    def _entry(self, given: Mapping[str, Any], within: tuple[str, ...]) -> Any:
        directives = {key: _text(key, given[key]) for key in (_INHERIT, _COPY, _DELETE) if key in given}
        deleted = {name.strip() for name in directives.pop(_DELETE, "").split(",")} - {""}
        if len(directives) > 1:
            raise ConfigurationError(f"{_INHERIT} and {_COPY} stand side by side: keep one of them")
        own = {key: one for key, one in given.items() if key not in (_INHERIT, _COPY, _DELETE)}
        found = {key: self.made(one, within) for key, one in own.items() if key not in deleted}
        if directives:
            ((kind, path),) = directives.items()
            other = self._other(path, within)
            if kind == _INHERIT:
                self.inherited.add(path)
            if not isinstance(other, dict):
                if given.keys() != {kind}:
                    raise ConfigurationError(f"{path!r} has no keys, so no values can stand over it")
                return other
            own |= other
            found = _over({key: one for key, one in other.items() if key not in deleted}, found)
        if missing := deleted - own.keys():
            raise ConfigurationError(f"{_DELETE} names {', '.join(sorted(missing))}, which is not there: leave it out")
        return found

    def _other(self, path: str, within: tuple[str, ...]) -> Any:
        if path in within:
            raise ConfigurationError(f"{path!r} is made of itself: {' of '.join((*within, path))}")
        if len(within) == _MOST_DEEP:
            raise ConfigurationError(f"{within[0]!r} is made of entries {_MOST_DEEP} deep: make it of fewer")
        found: Any = self._config
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise ConfigurationError(f"{_INHERIT} or {_COPY} names {path!r}, which is not there: correct the path")
            found = found[name]
        return self.made(found, (*within, path))


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{key} must be a text such as a.b, found {str(value)[:100]!r}")
    return value


def _over(lower: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` with the values of `upper`: mappings are joined, anything else is replaced."""
    joined = dict(lower)
    for key, value in upper.items():
        below = joined.get(key)
        joined[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return joined


def _take_out(config: Any, path: str) -> None:
    *above, name = path.split(".")
    for each in above:
        config = config.get(each) if isinstance(config, dict) else None
    if isinstance(config, dict):
        config.pop(name, None)
