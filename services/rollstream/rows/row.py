"""A row of a file, as it was read, and what gives rows: a file, a directory, or a data set on the hub."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from rollstream.process.files import sha256_of
from rollstream.schemas.errors import ConfigurationError

MAX_ROW_BYTES: Final = 2**26
"""A larger row is a bad one: 64 MiB of text are some 16 million tokens, which no model takes."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class ReadRow:
    """One row. `fields` are JSON values: no numpy arrays, dates as ISO text, null for a number that is not finite.

    `number` counts the rows from 0, bad ones too; `where` is for people, e.g. `data.jsonl line 7`.
    """

    number: int
    where: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't be read, and why."""

    number: int
    where: str
    why: str


class RowSource(Protocol):
    """Rows in the order of the file; it may be iterated again, and must not change meanwhile."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def num_rows(self) -> int | None:
        """How many rows it has, bad ones too; None as long as that is not known without reading all."""

    def identity(self) -> str:
        """Name and start of the SHA-256 of the content. Reads all of it; afterwards `num_rows` is known."""

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """The rows, with constant memory. Raises `ConfigurationError` where the file is damaged."""


def num_characters(value: Any) -> int:
    """Characters of all texts of a row or a value, also within lists and objects: about the memory that it takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(num_characters, value.values()))
    return sum(map(num_characters, value)) if isinstance(value, list | tuple) else 0


def good_rows(rows: RowSource) -> Iterator[Mapping[str, Any]]:
    """The fields of the rows that can be read."""
    return (row.fields for row in rows if isinstance(row, ReadRow))


def identity_of(path: Path, files: Sequence[Path]) -> str:
    """The name of `path` and the start of a SHA-256 of its `files`, in their order; raises `ConfigurationError`."""
    try:
        sums = {file: sha256_of(file) for file in files}
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    return joined_identity(path, sums)


def joined_identity(path: Path, sums: Mapping[Path, str]) -> str:
    """The same of files whose SHA-256 are known."""
    if list(sums) == [path]:
        # That which any other program shows.
        return shown_identity(path, sums[path])
    listed = "".join(f"{file.relative_to(path)} {sha256}\n" for file, sha256 in sums.items())
    return shown_identity(path, hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest())


def shown_identity(path: Path, sha256: str) -> str:
    """How an identity is written."""
    return f"{path.name}@{sha256[:_DIGITS]}"
