"""Rows of a JSONL file that may have grown since it was read: its former content is summed, and not read as rows again.

To read a line and to look whether its row is known takes some 100 µs, to sum it less than a hundredth of that. So a
file that grows for weeks costs little at each look. The sum is of all former bytes: a file that changed anywhere is
read from its start.
"""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from rollstream.rows.jsonl import lines_of, numbered_row
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)
_PIECE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class ReadTo:
    """How far a file was read: the end of its last whole line, the number of lines, the SHA-256 of all before."""

    end: int
    num_lines: int
    sha256: str

    @classmethod
    def of(cls, noted: Any) -> Self | None:
        """From a mark; None if it tells none."""
        return cls(*noted) if isinstance(noted, list) and len(noted) == 3 else None

    def noted(self) -> list[Any]:
        """As a mark holds it."""
        return list(astuple(self))


class GrownRows:
    """The rows that come after `earlier`, or all of a file that does not begin as it did. To be iterated once.

    `is_read_again`: a last line without its end that is no row yet is left for the next time.
    """

    def __init__(self, path: Path, earlier: ReadTo | None, *, is_read_again: bool = False) -> None:
        self._path = path
        self._earlier = earlier
        self._is_read_again = is_read_again
        self.read_to: ReadTo | None = None
        """Set at the end of the rows."""

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """The rows; raises `ConfigurationError` if the file can't be read."""
        try:
            opened = self._path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {error.strerror}") from error
        with opened as stream:
            summed = _Summed(stream)
            if self._earlier is None or not summed.begins_with(self._earlier):
                summed.begin()
            for number, line in enumerate(lines_of(summed), summed.num_lines + 1):
                row = numbered_row(self._path.name, number - 1, number, line)
                if isinstance(row, BadRow) and self._is_read_again and line is not None and not line.endswith(b"\n"):
                    _LOG.warning("%s: its last line is not whole (%s): it is read when it is", self._path, row.why)
                elif row is not None:
                    yield row
            self.read_to = summed.read_to()


class _Summed:
    """A stream of which all that is read is summed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.name = stream.name
        self.begin()

    def begin(self) -> None:
        """Go to the start of the file."""
        self._stream.seek(0)
        self._sum = hashlib.sha256()
        self._whole = self._sum.copy()
        self._end = self._position = self.num_lines = 0

    def begins_with(self, earlier: ReadTo) -> bool:
        """Whether the file begins with what was read; then the rest follows."""
        while self._position < earlier.end:
            try:
                piece = self._stream.read(min(_PIECE_BYTES, earlier.end - self._position))
            except OSError as error:
                raise ConfigurationError(f"cannot read {self.name}: {error.strerror}; is its disk there?") from error
            if not piece:
                return False
            self._sum.update(piece)
            self._position += len(piece)
        self._whole, self._end, self.num_lines = self._sum.copy(), earlier.end, earlier.num_lines
        return self._sum.hexdigest() == earlier.sha256

    def readline(self, most: int) -> bytes:
        piece = self._stream.readline(most)
        if self._position == self._end:
            # A line begins, which may not be whole yet.
            self._whole = self._sum.copy()
        self._sum.update(piece)
        self._position += len(piece)
        if piece.endswith(b"\n"):
            self._end = self._position
            self.num_lines += 1
        return piece

    def read_to(self) -> ReadTo:
        """How far whole lines were read."""
        whole = self._sum if self._position == self._end else self._whole
        return ReadTo(self._end, self.num_lines, whole.hexdigest())
