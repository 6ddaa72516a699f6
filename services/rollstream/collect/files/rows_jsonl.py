"""Rows of a JSONL file: one JSON object a line. Empty lines are passed over and not counted."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from rollstream.collect.files.rows import MAX_ROW_BYTES, BadRow, ReadRow, shown_identity
from rollstream.schemas.errors import ConfigurationError

_BOM: Final = b"\xef\xbb\xbf"
_MAX_NESTING: Final = 100
"""What handles a row may call itself for each level, and Python has some 1000 calls for all."""


class JsonlRows:
    """See `RowSource`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: str | None = None
        self.name = path.name
        self.num_rows: int | None = None

    def identity(self) -> str:
        """See `RowSource.identity`; counts the rows in the same pass."""
        if self._identity is None:
            digest, num_rows, is_blank = hashlib.sha256(), 0, True
            with self._opened() as stream:
                # A line may be as long as the file.
                while piece := stream.readline(MAX_ROW_BYTES):
                    digest.update(piece)
                    is_blank = is_blank and not piece.strip()
                    if piece.endswith(b"\n"):
                        num_rows, is_blank = num_rows + (not is_blank), True
            self.num_rows = num_rows + (not is_blank)
            self._identity = shown_identity(self._path, digest.hexdigest())
        return self._identity

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """See `RowSource.__iter__`."""
        number = 0
        with self._opened() as stream:
            for line_number, line in enumerate(_lines(stream), 1):
                where = f"{self.name} line {line_number}"
                if line is None:
                    yield BadRow(number, where, f"it is longer than {MAX_ROW_BYTES} bytes")
                elif line.strip():
                    yield row_of_line(number, where, line.removeprefix(_BOM) if line_number == 1 else line)
                else:
                    continue
                number += 1
        if not number:
            raise ConfigurationError(f"{self._path} has no rows, only empty lines")

    def _opened(self) -> IO[bytes]:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {error.strerror}") from error


def _lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines; None for one over the bound, whose rest is passed over."""
    while line := stream.readline(MAX_ROW_BYTES + 1):
        if len(line) <= MAX_ROW_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_ROW_BYTES)
        yield None


def row_of_line(number: int, where: str, line: bytes) -> ReadRow | BadRow:
    """The row of one line; numbers that are not finite are null."""
    try:
        # Decoded here, since the library would guess the encoding.
        fields = _DECODER.decode(line.decode())
        if b"\\ud" in line or b"\\uD" in line:
            # Half of a surrogate pair, written as an escape: no file and no server would take it.
            json.dumps(fields, ensure_ascii=False).encode()
        if line.count(b"[") + line.count(b"{") > _MAX_NESTING:
            _refuse_deep(fields)
    except UnicodeEncodeError:
        return BadRow(number, where, "it holds half of a surrogate pair, which is no text")
    except UnicodeDecodeError:
        return BadRow(number, where, "it is not UTF-8")
    except RecursionError:
        return BadRow(number, where, "its JSON is nested too deeply")
    except ValueError as error:
        return BadRow(number, where, f"it is not valid JSON{' and holds NUL bytes' * (0 in line)}: {error}")
    if not isinstance(fields, dict):
        return BadRow(number, where, f"expected a JSON object, got {_kind(fields)}")
    return ReadRow(number, where, fields)


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
