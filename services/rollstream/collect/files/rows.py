"""Rows of a file that a person names: JSONL, parquet, or a directory that `datasets` or we wrote. Read as a stream.

A row that can't be read is a `BadRow`: the caller counts and lists it, and the rest goes on. What makes the whole file
unreadable is a `ConfigurationError`. Nothing that a row names is ever opened.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Protocol

from rollstream.schemas.errors import ConfigurationError

MAX_ROW_BYTES: Final = 2**26
"""A larger row is a bad one: 64 MiB of text are some 16 million tokens, which no model takes."""
_DIGITS: Final = 12
_NOT_ROWS: Final = ("_failures.jsonl", "_bad_rows.jsonl", "_journal.jsonl")
"""What our commands write beside rows."""


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
        ...

    @property
    def num_rows(self) -> int | None:
        """How many rows it has, bad ones too; None as long as that is not known without reading all."""
        ...

    def identity(self) -> str:
        """Name and start of the SHA-256 of the content. Reads all of it; afterwards `num_rows` is known."""
        ...

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """The rows, with constant memory. Raises `ConfigurationError` where the file is damaged."""
        ...


def open_rows(path: Path, begun_with: str = "") -> RowSource:
    """The rows of `path`: .jsonl, .parquet, a directory of such files, or one of `datasets.save_to_disk`.

    A path that begins with `hf:` is a data set on the hub, of the commit that `begun_with` names (`hub.py`).
    Raises `ConfigurationError` if it is none of them, if it can't be read, or if it has no rows.
    """
    from rollstream.collect.files.hub import is_hub_name, open_hub_rows

    if is_hub_name(path):
        return open_hub_rows(path, begun_with)
    try:
        if path.is_dir():
            return _directory(path)
        status = path.stat()
        if not S_ISREG(status.st_mode):
            # To open a pipe waits for somebody who writes to it.
            raise ConfigurationError(f"cannot read {path}: it is no file, but a pipe or a device; name a file")
        size, start = status.st_size, _start(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    if not size:
        raise ConfigurationError(f"{path} is empty: it has no rows")
    is_parquet = start == b"PAR1"
    if path.suffix == ".jsonl" and not is_parquet:
        from rollstream.collect.files.rows_jsonl import JsonlRows

        return JsonlRows(path)
    if path.suffix == ".parquet":
        from rollstream.collect.files.rows_arrow import ParquetRows

        return ParquetRows(path, (path,))
    found = " (its content is parquet)" if is_parquet else ""
    raise ConfigurationError(
        f"{path}{found}: the name must end in .jsonl (one JSON object a line) or .parquet, or be a directory; rename it"
    )


def _start(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)


def _directory(path: Path) -> RowSource:
    from rollstream.collect.files.rows_arrow import ParquetRows, SavedRows

    if (path / "state.json").is_file():
        return SavedRows(path)
    if (path / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in path.iterdir() if (child / "state.json").is_file())
        raise ConfigurationError(f"{path} holds several splits, {', '.join(splits)}: name one, e.g. {path / splits[0]}")
    if files := _named(path, ".parquet"):
        return ParquetRows(path, files)
    if files := [file for file in _named(path, ".jsonl") if not file.name.endswith(_NOT_ROWS)]:
        from rollstream.collect.files.rows_jsonl import JsonlRows

        return JsonlRows(path, files)
    raise ConfigurationError(
        f"{path} holds neither parquet nor JSONL files nor what `datasets.save_to_disk` writes: name another directory"
    )


def _named(directory: Path, ending: str) -> list[Path]:
    return [file for file in sorted(directory.rglob(f"*{ending}")) if not is_hidden(file)]


def is_hidden(file: Path) -> bool:
    """Whether its name begins as those of files that are being written, and of other programs' notes."""
    return file.name.startswith((".", "_"))


def identity_of(path: Path, files: Sequence[Path]) -> str:
    """The name of `path` and the start of a SHA-256 of its `files`, in their order; raises `ConfigurationError`."""
    try:
        sums = {file: _sha256(file) for file in files}
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


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
