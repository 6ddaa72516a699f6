"""Rows of parquet files, and of directories that `datasets.save_to_disk` wrote. The one reader with pyarrow."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow
import pyarrow.parquet

from rollstream.process.terminal import shown
from rollstream.rows.columns import is_json_text, is_widened
from rollstream.rows.jsonl import json_value
from rollstream.rows.plain import plain
from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow, identity_of
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.values import with_whole_numbers

_BATCH_BYTES: Final = 2**23
_BATCH_ROWS: Final = 1024
_READ_BYTES: Final = 2**20
_BROKEN: Final = (OSError, pyarrow.ArrowException)


class ParquetRows:
    """The rows of one or more files, in the order of the files. See `RowSource`."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self._path = path
        self._files = tuple(files)
        self.name = path.name
        self.num_rows: int | None = sum(_opened(file).metadata.num_rows for file in files)
        if not self.num_rows:
            raise ConfigurationError(f"{path} has no rows")

    def identity(self) -> str:
        return identity_of(self._path, self._files)

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        number = 0
        for file in self._files:
            first = number
            parquet = _opened(file)
            try:
                for batch in parquet.iter_batches(_rows_at_once(parquet), use_threads=False):
                    yield from rows_of(batch, number, f"{file.name} row", number - first)
                    number += batch.num_rows
            except _BROKEN as error:
                raise _damaged(file, number - first, error) from error


class SavedRows:
    """The rows of a directory of `datasets.save_to_disk`. See `RowSource`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _shards(path)
        self.name = path.name
        self.num_rows: int | None = None

    def identity(self) -> str:
        if self.num_rows is None:
            self.num_rows = sum(batch.num_rows for file in self._files for batch in _stream(file))
        return identity_of(self._path, self._files)

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        number = 0
        for file in self._files:
            for batch in _stream(file):
                yield from rows_of(batch, number, f"{self.name} row", number)
                number += batch.num_rows
        if not number:
            raise ConfigurationError(f"{self._path} has no rows")


def _opened(file: Path) -> pyarrow.parquet.ParquetFile:
    try:
        # Without the buffer a column of a whole row group is read at once; pandas writes a million rows into one.
        return pyarrow.parquet.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
    except _BROKEN as error:
        raise ConfigurationError(f"cannot read {file}: {error}; it must be a whole parquet file") from error


def _rows_at_once(parquet: pyarrow.parquet.ParquetFile) -> int:
    """So many that a batch takes about `_BATCH_BYTES`."""
    groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1.0)
    return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(largest, 1.0))))


def _shards(path: Path) -> tuple[Path, ...]:
    try:
        state = json.loads((path / "state.json").read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        has_indices = bool(state.get("_indices_data_files"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}/state.json is not what `datasets.save_to_disk` writes: {error!r}") from error
    if has_indices:
        raise ConfigurationError(f"{path} was saved with a mapping of its rows: save it again with datasets 2 or newer")
    strange = [name for name in names if Path(name).name != name]
    if strange or not names:
        raise ConfigurationError(f"{path}/state.json names {strange or 'no files'}; expected files beside it")
    return tuple(path / name for name in names)


def _stream(file: Path) -> Iterator[pyarrow.RecordBatch]:
    try:
        # Not mapped: mapped pages would count as this process's memory, as much as the file has.
        with pyarrow.OSFile(str(file)) as opened, pyarrow.ipc.open_stream(opened) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS)
    except _BROKEN as error:
        raise _damaged(file, 0, error) from error


def _damaged(file: Path, row: int, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{file} is damaged from about row {row} on: {error}; write it again")


def rows_of(batch: pyarrow.RecordBatch, first: int, what: str, start: int) -> Iterator[ReadRow | BadRow]:
    """The rows of a batch, numbered from `first`; people find them as `what` with a number from `start` on."""
    nested = [field.name for field in batch.schema if not _is_plain(field.type)]
    widened = [field.name for field in batch.schema if is_widened(field)]
    written = [field.name for field in batch.schema if is_json_text(field)]
    try:
        rows = None if batch.nbytes > MAX_ROW_BYTES else batch.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, pyarrow.ArrowException):
        # Some row can't be read: the others can.
        rows = None
    if rows is None:
        for row in range(batch.num_rows):
            yield _with_values(_single(batch.slice(row, 1), first + row, f"{what} {start + row}"), written, widened)
        return
    for row, fields in enumerate(rows):
        for name in nested:
            fields[name] = plain(fields[name])
        yield _with_values(ReadRow(first + row, f"{what} {start + row}", fields), written, widened)


def _with_values(row: ReadRow | BadRow, written: Sequence[str], widened: Sequence[str]) -> ReadRow | BadRow:
    """The row with the values as they were: of columns that were written as JSON text, or widened."""
    if isinstance(row, BadRow):
        return row
    for name in widened:
        row.fields[name] = with_whole_numbers(row.fields[name])
    for name in written:
        text = row.fields[name]
        try:
            row.fields[name] = json_value(text) if isinstance(text, str) else text
        except (ValueError, RecursionError) as error:
            why = "is nested too deeply" if isinstance(error, RecursionError) else error
            return BadRow(row.number, row.where, f"its column {shown(name)} {why}")
    return row


def _single(batch: pyarrow.RecordBatch, number: int, where: str) -> ReadRow | BadRow:
    if batch.nbytes > MAX_ROW_BYTES:
        return BadRow(number, where, f"it has {batch.nbytes} bytes, more than {MAX_ROW_BYTES}")
    try:
        [fields] = batch.to_pylist(maps_as_pydicts="lossy")
    except UnicodeDecodeError:
        return BadRow(number, where, "its text is not UTF-8")
    except (ValueError, OverflowError, pyarrow.ArrowException) as error:
        return BadRow(number, where, f"it can't be read: {error}")
    return ReadRow(number, where, {name: plain(value) for name, value in fields.items()})


def _is_plain(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind)
    )
