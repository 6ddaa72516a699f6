"""The file of an evaluation that follows a run: one JSON object a version, each added once.

A process that goes on reads the end of the file alone. A line that a kill cut off is cut away: its version was not
evaluated.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from rollstream.process.files import held, writable
from rollstream.schemas.errors import ConfigurationError

SETTINGS: Final = ("run", "environment", "num_prompts", "num_samples", "temperature", "pass_threshold")
"""What all lines of a file have in common: results under others can't be compared."""
# A line has at most 256 numbers and a few short texts.
_MOST_BYTES: Final = 2**17
_BEGIN: Final = b'{"run": '


class Results:
    """A file that is open to add to. `last_version`: the one of its last line, None if it has none."""

    def __init__(self, path: Path, stream: IO[bytes], last: Mapping[str, Any] | None) -> None:
        self._path = path
        self._stream = stream
        self._last = last
        self.last_version: int | None = None if last is None else last["weight_version"]

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a version's result; it is on the disk when this returns.

        Raises `ConfigurationError` if the file has results under other settings, and what `writable` raises.
        """
        self.refuse_other(result)
        rest = json.dumps(result).encode() + b"\n"
        with writable(self._path):
            # A disk that is nearly full takes a part first, and says so at the next attempt.
            while rest:
                rest = rest[self._stream.write(rest) :]
            os.fsync(self._stream.fileno())
        self._last, self.last_version = result, result["weight_version"]

    def refuse_other(self, settings: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` unless the file's results, if it has any, came about under these settings."""
        last = self._last or {}
        for name in (name for name in SETTINGS if name in last and name in settings):
            if last[name] != settings[name]:
                raise ConfigurationError(
                    f"{self._path} has results with {name} = {json.dumps(last[name])}, now it is "
                    f"{json.dumps(settings[name])}: go on with the same, or name another --output"
                )


@contextmanager
def results_at(path: Path) -> Iterator[Results]:
    """Open the file to go on with it, and hold it: one process at a time adds to it.

    Raises `ConfigurationError` if it can't be written, another process holds it, or its end is no result.
    """
    with held(path):
        with writable(path):
            path.touch()
            stream = path.open("r+b", buffering=0)
        with stream:
            with writable(path):
                last = _last_line(path, stream)
            yield Results(path, stream, last)


def _last_line(path: Path, stream: IO[bytes]) -> dict[str, Any] | None:
    """The last whole line; the stream is at its end, and what follows it is cut away."""
    size = stream.seek(0, os.SEEK_END)
    first = stream.seek(max(0, size - _MOST_BYTES))
    text, _, torn = stream.read(_MOST_BYTES).rpartition(b"\n")
    line = text.rpartition(b"\n")[2]
    result = _result(line)
    # What else has no end of a line may be anybody's file.
    is_torn = _BEGIN.startswith(torn[: len(_BEGIN)])
    if not is_torn or (result is None and (line or first)):
        raise ConfigurationError(f"the end of {path} is no result of an evaluation: name another --output")
    stream.truncate(size - len(torn))
    stream.seek(0, os.SEEK_END)
    return result


def _result(line: bytes) -> dict[str, Any] | None:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    version = result.get("weight_version") if isinstance(result, dict) else None
    return result if isinstance(version, int) and set(SETTINGS) <= set(result) else None
