"""Rows of a file that a person names: JSONL, parquet, or a directory that `datasets` or we wrote. Read as a stream.

A JSONL file whose first line is a list of objects is a stream of the Reasoning Cache actor (`groups.py`).

A row that can't be read is a `BadRow`: the caller counts and lists it, and the rest goes on. What makes the whole file
unreadable is a `ConfigurationError`. Nothing that a row names is ever opened.
"""

import unicodedata
from pathlib import Path
from stat import S_ISREG
from typing import Final

from rollstream.rows.groups import GroupRows
from rollstream.rows.hub import is_hub_name, open_hub_rows
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.row import RowSource
from rollstream.schemas.errors import ConfigurationError

_NOT_ROWS: Final = ("_failures.jsonl", "_bad_rows.jsonl")
"""What our commands write beside rows."""
_NO_TEXT: Final = ("Cc", "Cs")
"""Control characters, and what stands for bytes that are not UTF-8."""


def open_rows(path: Path, begun_with: str = "") -> RowSource:
    """The rows of `path`: .jsonl, .parquet, a directory of such files, or one of `datasets.save_to_disk`.

    A path that begins with `hf:` is a data set on the hub, of the commit that `begun_with` names (`hub.py`).
    Raises `ConfigurationError` if it is none of them, if it can't be read, or if it has no rows.
    """
    if is_hub_name(path):
        return open_hub_rows(path, begun_with)
    if any(unicodedata.category(character) in _NO_TEXT for character in path.name):
        # Records and manifests name the source.
        raise ConfigurationError(f"cannot read {path.name!r}: its name is no text or has control characters; rename it")
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
        return GroupRows(path) if start.startswith(b"[{") else JsonlRows(path)
    if path.suffix == ".parquet":
        from rollstream.rows.arrow import ParquetRows

        return ParquetRows(path, (path,))
    found = " (its content is parquet)" if is_parquet else ""
    raise ConfigurationError(
        f"{path}{found}: the name must end in .jsonl (one JSON object a line) or .parquet, or be a directory; rename it"
    )


def _start(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)


def _directory(path: Path) -> RowSource:
    from rollstream.rows.arrow import ParquetRows, SavedRows

    if (path / "state.json").is_file():
        return SavedRows(path)
    if (path / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in path.iterdir() if (child / "state.json").is_file())
        raise ConfigurationError(f"{path} holds several splits, {', '.join(splits)}: name one, e.g. {path / splits[0]}")
    if files := _named(path, ".parquet"):
        return ParquetRows(path, files)
    if files := [file for file in _named(path, ".jsonl") if not file.name.endswith(_NOT_ROWS)]:
        return JsonlRows(path, files)
    raise ConfigurationError(
        f"{path} holds neither parquet nor JSONL files nor what `datasets.save_to_disk` writes: name another directory"
    )


def _named(directory: Path, ending: str) -> list[Path]:
    return [file for file in sorted(directory.rglob(f"*{ending}")) if not is_hidden(file)]


def is_hidden(file: Path) -> bool:
    """Whether its name begins as those of files that are being written, and of other programs' notes."""
    return file.name.startswith((".", "_"))
