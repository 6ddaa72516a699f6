"""Reads a run's TOML file, and tells on which line each key stands, for errors."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rollstream.schemas.errors import ConfigurationError

_MOST_BYTES: Final = 2**20

KeyPath = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A run's file as it was read; without a file it is empty."""

    path: Path | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: Path) -> "RunFile":
        """Read the file; raises `ConfigurationError` that says why it can't be read."""
        text = _text(path)
        try:
            return cls(path=path, document=tomllib.loads(text), text=text)
        except ValueError as error:
            raise ConfigurationError(f"{path} is not valid TOML: {error}") from error

    def place_of(self, keys: Sequence[str]) -> str:
        """The file with the line of this key, or with that of the nearest table around it."""
        for length in range(len(keys), 0, -1):
            if (line := self._lines.get(tuple(keys[:length]))) is not None:
                return f"{self.path} line {line}"
        return str(self.path or "the environment")

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        return _lines(self.text)


def _text(path: Path) -> str:
    try:
        # A device has no end. A pipe is fine: a shell gives one for `--config <(…)`.
        if path.exists() and not (path.is_file() or path.is_fifo()):
            raise ConfigurationError(f"cannot read {path}: it is no file; name another one with --config")
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"cannot read {path}: {why}; name another file with --config") from error
    if len(content) > _MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {_MOST_BYTES} bytes: it is no settings file of a run")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path} is not valid TOML: line {line} is not UTF-8; save it as UTF-8") from None


def _lines(text: str) -> dict[KeyPath, int]:
    """The line of each key and table. The library does not tell it, so the statements are parsed one by one."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, first = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        first = first if statement else number
        statement += line + "\n"
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on in the next line
        is_header = statement.lstrip().startswith("[")
        for path in _paths(parsed, () if is_header else table):
            lines.setdefault(path, first)
            if is_header:
                table = path
        statement = ""
    return lines


def _paths(parsed: Mapping[str, Any], above: KeyPath) -> Iterator[KeyPath]:
    for name, value in parsed.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
