"""Rows of a JSONL file: one JSON object a line. Empty lines are passed over and not counted."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow, joined_identity
from rollstream.schemas.errors import ConfigurationError

_BOM: Final = b"\xef\xbb\xbf"
_MAX_NESTING: Final = 100
"""What handles a row may call itself for each level, and Python has some 1000 calls for all."""


class JsonlRows:
    """The rows of `path`, or of the `files` in that directory, in their order. See `RowSource`."""

    def __init__(self, path: Path, files: Sequence[Path] = ()) -> None:
        self._path = path
        self._files = tuple(files) or (path,)
        self._identity: str | None = None
        self.name = path.name
        self.num_rows: int | None = None

    def identity(self) -> str:
        """The identity; the rows are counted in the same pass."""
        if self._identity is None:
            counted = {file: _counted(file) for file in self._files}
            self.num_rows = sum(num_rows for _, num_rows in counted.values())
            self._identity = joined_identity(self._path, {file: sha256 for file, (sha256, _) in counted.items()})
        return self._identity

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        number = 0
        for file in self._files:
            with _opened(file) as stream:
                for line_number, line in enumerate(lines_of(stream), 1):
                    row = numbered_row(file.name, number, line_number, line)
                    if row is not None:
                        yield row
                        number += 1
        if not number:
            raise ConfigurationError(f"{self._path} has no rows, only empty lines")


def _opened(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error


def _counted(file: Path) -> tuple[str, int]:
    """The SHA-256 of a file, and its number of rows."""
    digest, num_rows, is_blank = hashlib.sha256(), 0, True
    with _opened(file) as stream:
        # A line may be as long as the file.
        while piece := _read(stream, MAX_ROW_BYTES):
            digest.update(piece)
            is_blank = is_blank and not piece.strip()
            if piece.endswith(b"\n"):
                num_rows, is_blank = num_rows + (not is_blank), True
    return digest.hexdigest(), num_rows + (not is_blank)


class LineStream(Protocol):
    """What lines are read from."""

    @property
    def name(self) -> str:
        """Its file, for messages."""

    def readline(self, most: int, /) -> bytes:
        """The next line, or its first `most` bytes."""


def lines_of(stream: LineStream) -> Iterator[bytes | None]:
    """The lines; None for one over the bound, whose rest is passed over."""
    while line := _read(stream, MAX_ROW_BYTES + 1):
        if len(line) <= MAX_ROW_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = _read(stream, MAX_ROW_BYTES)
        yield None


def numbered_row(name: str, number: int, line_number: int, line: bytes | None) -> ReadRow | BadRow | None:
    """The row of a line of the file `name` as `lines_of` gives it; None for an empty line."""
    where = f"{name} line {line_number}"
    if line is None:
        return BadRow(number, where, f"it is longer than {MAX_ROW_BYTES} bytes")
    if not line.strip():
        return None
    return row_of_line(number, where, line.removeprefix(_BOM) if line_number == 1 else line)


def _read(stream: LineStream, most: int) -> bytes:
    """The next line, or its first `most` bytes; raises `ConfigurationError` if the disk does not give them."""
    try:
        return stream.readline(most)
    except OSError as error:
        raise ConfigurationError(f"cannot read {stream.name}: {error.strerror}; is its disk there?") from error


def row_of_line(number: int, where: str, line: bytes) -> ReadRow | BadRow:
    """The row of one line; numbers that are not finite are null."""
    try:
        # Decoded here, since the library would guess the encoding.
        fields = json_value(line.decode())
    except UnicodeDecodeError:
        return BadRow(number, where, "it is not UTF-8")
    except RecursionError:
        return BadRow(number, where, "its JSON is nested too deeply")
    except ValueError as error:
        return BadRow(number, where, f"it {error}")
    if not isinstance(fields, dict):
        return BadRow(number, where, f"expected a JSON object, got {_kind(fields)}")
    return ReadRow(number, where, fields)


def json_value(text: str) -> Any:
    """The value of a JSON text; numbers that are not finite are null.

    Raises `RecursionError` if it is nested too deeply, and `ValueError` that says what it is, e.g. "is not valid JSON".
    """
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            # Half of a surrogate pair, written as an escape: no file and no server would take it.
            json.dumps(value, ensure_ascii=False).encode()
        if text.count("[") + text.count("{") > _MAX_NESTING:
            _refuse_deep(value)
    except UnicodeEncodeError as error:
        raise ValueError("holds half of a surrogate pair, which is no text") from error
    except ValueError as error:
        raise ValueError(f"is not valid JSON{' and holds NUL bytes' * (chr(0) in text)}: {error}") from error
    return value


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


# The library takes NaN, which is no JSON, as a number, and reads 1e999 as infinity.
_DECODER: Final = json.JSONDecoder(parse_constant=lambda word: None, parse_float=_finite)


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        if not level:
            return
    raise RecursionError


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
