"""Writes rows to a JSONL file, a parquet file or a directory that `datasets.load_from_disk` opens. Constant memory.

The file appears under its name only when it is complete. Parquet needs the types of all columns before its first row,
so rows wait in a JSONL file beside it, and are read a second time.

No system call replaces a directory that has files. So the former one is moved aside first, and a process that is killed
between the two moves leaves it there whole: `restore_replaced` brings it back.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol

from rollstream.process.crash_points import crash_point
from rollstream.process.files import hidden_beside, move, opened, sync_all, writable
from rollstream.rows.plain import plain
from rollstream.rows.row import num_characters
from rollstream.schemas.errors import ConfigurationError, UnfitColumnError

if TYPE_CHECKING:
    from rollstream.rows.columns import Columns

Kind = Literal["jsonl", "parquet", "hf"]
Row = Mapping[str, Any]

_BATCH_ROWS: Final = 1000
_BATCH_BYTES: Final = 2**23
_ROW_GROUP_BYTES: Final = 2**23
_SAVED: Final = ("state.json", "dataset_info.json")
"""What `Dataset.save_to_disk` writes beside the rows."""
_SHARD_BYTES: Final = 2**29


class RowWriter(Protocol):
    """Takes the rows of one file."""

    def write(self, fields: Row) -> None:
        """Add a row of JSON values; numpy's are taken too."""


def kind_of(output: Path, *, may_be_directory: bool = True) -> Kind:
    """The format by the name: .jsonl, .parquet, or a directory for a name without a suffix.

    Raises `ConfigurationError` for any other name.
    """
    kinds: dict[str, Kind] = {".jsonl": "jsonl", ".parquet": "parquet", **({"": "hf"} if may_be_directory else {})}
    if not output.name or output.suffix not in kinds:
        directory = ", or have no suffix for a directory that `datasets.load_from_disk` opens" * may_be_directory
        raise ConfigurationError(f"output {output}: its name must end in .jsonl or .parquet{directory}")
    return kinds[output.suffix]


def write_rows(path: Path, kind: Kind) -> AbstractContextManager[RowWriter]:
    """A writer of `path`, which is replaced when the block ends without an error.

    parquet and hf: the columns are those of all rows, null where a row lacks one; one whose types do not agree over the
    rows becomes JSON text. Raises `ConfigurationError` if nothing can be written there, and `MachineError` if the
    disk is full.
    """
    return _jsonl(path) if kind == "jsonl" else _spooled(path, kind)


def rewrite_rows(path: Path, kind: Kind, rows: Callable[[], Iterable[Row]]) -> int:
    """Write all rows that `rows()` gives; it is called again for each pass over them. Returns their number."""
    if kind == "jsonl":
        num_rows = 0
        with _jsonl(path) as writer:
            for fields in rows():
                writer.write(fields)
                num_rows += 1
        return num_rows
    with _replacing(path) as part, writable(path):
        return _write_columns(part, kind, rows)


def refuse_irreplaceable(path: Path) -> None:
    """Raise `ConfigurationError` for a directory with anything but a saved data set: it is replaced as a whole."""
    if not path.is_dir() or path.is_symlink():
        return
    others = sorted(one.name for one in path.iterdir() if one.name not in _SAVED and one.suffix != ".arrow")
    if others:
        raise ConfigurationError(
            f"{path} is a directory with other files ({', '.join(others[:3])}): name another output, or move them away"
        )


def restore_replaced(path: Path) -> None:
    """Bring back the directory that a process which was killed had moved aside; called by whoever holds `path`."""
    former = hidden_beside(path, "former")
    if former.is_dir():
        with writable(path):
            if path.exists():
                _remove(former)
            else:
                move(former, path)


def remove_output(path: Path) -> None:
    """Remove a file, or a directory with a data set; raises `ConfigurationError` for any other directory."""
    with writable(path):
        refuse_irreplaceable(path)
        _remove(path)


def json_line(fields: Row) -> bytes:
    """A row as one line of JSONL, with its end. Numbers that are not finite are null, as JSON has no word for them."""
    try:
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        text = json.dumps(plain(dict(fields)), ensure_ascii=False)
    # A line feed within a text is escaped by JSON, so that a row is always one line.
    return text.encode("utf-8", "replace") + b"\n"


class _Lines:
    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path = path
        self._stream = stream

    def write(self, fields: Row) -> None:
        line = json_line(fields)
        with writable(self._path):
            self._stream.write(line)


@contextmanager
def _jsonl(path: Path) -> Iterator[RowWriter]:
    with _replacing(path) as part, opened(path, part) as stream:
        yield _Lines(path, stream)


@contextmanager
def _spooled(path: Path, kind: Kind) -> Iterator[RowWriter]:
    spool = hidden_beside(path, "rows")
    try:
        with opened(path, spool) as stream:
            yield _Lines(path, stream)
        rewrite_rows(path, kind, lambda: _read(spool))
    finally:
        spool.unlink(missing_ok=True)


def _read(spool: Path) -> Iterator[Row]:
    with spool.open("rb") as stream:
        yield from (json.loads(line) for line in stream)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, which takes its name at the end of the block; removed after an error."""
    part = hidden_beside(path, "part")
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(part)
    restore_replaced(path)
    try:
        yield part
        with writable(path):
            sync_all(part)
            if path.is_dir() and not path.is_symlink():
                _replace_directory(path, part)
            else:
                move(part, path)
    finally:
        _remove(part)


def _replace_directory(path: Path, part: Path) -> None:
    refuse_irreplaceable(path)
    move(path, hidden_beside(path, "former"))
    crash_point("output_moved_aside")
    move(part, path)
    _remove(hidden_beside(path, "former"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_columns(part: Path, kind: Kind, rows: Callable[[], Iterable[Row]]) -> int:
    from rollstream.rows.columns import Columns

    columns, num_rows = Columns(), 0
    for batch in _batches(rows()):
        columns.see(batch)
        num_rows += len(batch)
    while True:
        try:
            if kind == "parquet":
                _write_parquet(part, columns, rows)
            else:
                _write_saved(part, columns, rows)
            return num_rows
        except UnfitColumnError:
            # It is text from now on: as many tries as there are columns.
            _remove(part)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows together, few enough that large ones do not fill the memory."""
    remaining, batch, num_bytes = iter(rows), list[Row](), 0
    for fields in remaining:
        batch.append(fields)
        num_bytes += num_characters(fields)
        if len(batch) == _BATCH_ROWS or num_bytes > _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _write_parquet(part: Path, columns: "Columns", rows: Callable[[], Iterable[Row]]) -> None:
    import pyarrow
    import pyarrow.parquet

    with pyarrow.parquet.ParquetWriter(part, columns.schema, compression="zstd") as writer:
        group: list[Any] = []
        for batch in _batches(rows()):
            group.append(columns.table(batch))
            if sum(table.nbytes for table in group) > _ROW_GROUP_BYTES:
                writer.write_table(pyarrow.concat_tables(group))
                group = []
        if group:
            writer.write_table(pyarrow.concat_tables(group))


def _write_saved(part: Path, columns: "Columns", rows: Callable[[], Iterable[Row]]) -> None:
    """What `Dataset.save_to_disk` writes: Arrow streams, and two JSON files, which the library itself makes."""
    _save_empty(part, columns)
    shards, batches = list[Path](), _batches(rows())
    for batch in batches:
        shards.append(part / f"rows-{len(shards)}")
        _write_shard(shards[-1], columns, chain([batch], batches))
    if shards:
        _name_shards(part, shards)


def _save_empty(part: Path, columns: "Columns") -> None:
    from datasets import Dataset
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    was_quiet = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        Dataset(columns.schema.empty_table()).save_to_disk(part)
    finally:
        if not was_quiet:
            enable_progress_bars()


def _write_shard(shard: Path, columns: "Columns", batches: Iterator[list[Row]]) -> None:
    """Write the first batches until the shard is large enough."""
    import pyarrow

    with pyarrow.OSFile(str(shard), "wb") as stream, pyarrow.ipc.new_stream(stream, columns.schema) as writer:
        for batch in batches:
            writer.write_table(columns.table(batch))
            if stream.tell() > _SHARD_BYTES:
                return


def _name_shards(part: Path, shards: list[Path]) -> None:
    """Replace the empty shard in the state by the written ones, under the names that the library gives."""
    state = json.loads((part / "state.json").read_text())
    for entry in state["_data_files"]:
        (part / entry["filename"]).unlink()
    state["_data_files"] = []
    # The library names what it caches after it: that of the empty table would be the same for all data sets.
    state["_fingerprint"] = uuid.uuid4().hex[:16]
    for number, shard in enumerate(shards):
        name = f"data-{number:05d}-of-{len(shards):05d}.arrow"
        move(shard, part / name)
        state["_data_files"].append({"filename": name})
    (part / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
