"""The files of an archive, and which of them count. kill -9 at any point loses nothing and doubles nothing.

Rows are written in segments: what was read from one topic in one go, at most some thousand rows. A segment's files are
written under hidden names, synced and renamed. Then its JSON file below `segments/` is replaced at once: from that
moment the segment counts, with the offsets to read on from. So an offset never counts without its rows.

A segment is written again as its next generation when the fate of its rows has changed. Files that no segment names are
of a writer that died before or after the replacement: the next writer removes them. A reader that takes all files of a
directory, as pandas does, may see both generations of a segment until then; `files` gives those that count.

Both generations have the same rows with other fates. So who reads a segment as a whole, and again if it was replaced
meanwhile, finds each row once, also beside a writer.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rollstream.collect.archive.tables import FILE, SCHEMAS
from rollstream.process.crash_points import crash_point
from rollstream.schemas.errors import ConfigurationError

TopicName = Literal["ledger", "prompts", "scored"]

_IDENTITY: Final = "archive.json"
_SEGMENTS: Final = "segments"
_LOCK: Final = ".lock"
_MOST_SEGMENT_BYTES: Final = 2**24


class Identity(BaseModel):
    """What an archive is of. Offsets of another cluster's topics mean nothing here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    run: str
    cluster_id: str
    topic_ids: dict[str, str]


class Segment(BaseModel):
    """What was read from one topic in one go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=0)
    generation: int = Field(default=1, ge=1)
    topic: TopicName
    next_offsets: dict[int, int] = Field(description="Partition -> the offset to read on from")
    files: tuple[str, ...] = ()
    num_rows: int = 0
    num_unreadable: int = 0
    num_open: int = Field(default=0, description="Rows whose group was open")
    known_until: int = Field(default=0, description="Next offset of `ledger` when this generation was written")
    newest_entry: int = Field(default=-1, description="Largest offset of `ledger` that its rows depend on")

    @field_validator("files")
    @classmethod
    def _own_names(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for name in files:
            if not FILE.fullmatch(name):
                raise ValueError(f"{name[:200]!r} is no file of an archive")
        return files


class Store:
    """The segments of one archive. With `writing` there is one at a time; several may read."""

    def __init__(self, directory: Path) -> None:
        """Load the segments; raises `ConfigurationError` if this is no archive, or its files are damaged."""
        self.directory = directory
        self.identity = _loaded(directory / _IDENTITY, Identity)
        loaded = (_loaded(path, Segment) for path in sorted((directory / _SEGMENTS).glob("[0-9]*.json")))
        self.segments = {segment.number: segment for segment in loaded}

    @classmethod
    @contextmanager
    def writing(cls, directory: Path, identity: Identity) -> Iterator[Self]:
        """The only writer of an archive, which is made if it does not exist.

        Raises `ConfigurationError` if somebody else writes, or it is of another run or cluster.
        """
        with _writable(directory):
            (directory / _SEGMENTS).mkdir(parents=True, exist_ok=True)
            lock = (directory / _LOCK).open("w")
        with lock:
            _take(lock, directory)
            if not (directory / _IDENTITY).exists():
                _refuse_others(directory)
                with _writable(directory):
                    _replace(directory / _IDENTITY, identity)
            store = cls(directory)
            if store.identity != identity:
                raise ConfigurationError(
                    f"{directory} is the archive of run {store.identity.run} on cluster {store.identity.cluster_id}, "
                    f"not of these topics of {identity.run} on {identity.cluster_id}: name another directory"
                )
            store._remove_leftovers()
            yield store

    def next_offsets(self, topic: TopicName) -> dict[int, int]:
        """From where each partition is to be read on; empty before the first segment."""
        newest = max((one for one in self.segments.values() if one.topic == topic), key=_number, default=None)
        return {} if newest is None else newest.next_offsets

    def next_number(self) -> int:
        """The number of the next new segment."""
        return max(self.segments, default=-1) + 1

    def of_topic(self, topic: TopicName) -> list[Segment]:
        """The segments of a topic, in the order in which they were read."""
        return sorted((one for one in self.segments.values() if one.topic == topic), key=_number)

    def reloaded(self, number: int) -> Segment:
        """A segment as it is now: another process may have written its next generation."""
        segment: Segment = _loaded(self._segment_file(number), Segment)
        return segment

    def named(self, table: str, segments: Iterable[Segment]) -> list[Path]:
        """The files of a table that these segments name, in order, also those that somebody has deleted."""
        names = (name for segment in sorted(segments, key=_number) for name in segment.files)
        return [self.directory / name for name in names if name.startswith(f"{table}/")]

    def files(self, table: str, segments: Iterable[Segment]) -> list[Path]:
        """Those of them that are there."""
        return [path for path in self.named(table, segments) if path.is_file()]

    def commit(self, segment: Segment, tables: Mapping[str, pa.Table]) -> None:
        """Write a segment, or its next generation. `tables`: directory below the archive -> its rows."""
        with _writable(self.directory):
            names = [self._write(f"{place}/part-{segment.number:08d}-g{segment.generation}.parquet", table)
                     for place, table in tables.items()]  # fmt: skip
            self._sync_directories(names)
            crash_point("archive_files_written")
            old = self.segments.get(segment.number)
            final = segment.model_copy(update={"files": tuple(names)})
            _replace(self._segment_file(segment.number), final)
            crash_point("archive_segment_replaced")
            self.segments[segment.number] = final
            for name in () if old is None else old.files:
                (self.directory / name).unlink(missing_ok=True)
                crash_point("archive_file_removed")

    def _segment_file(self, number: int) -> Path:
        return self.directory / _SEGMENTS / f"{number:08d}.json"

    def _write(self, name: str, table: pa.Table) -> str:
        final = self.directory / name
        final.parent.mkdir(parents=True, exist_ok=True)
        hidden = final.with_name(_hidden(final.name))
        pq.write_table(table.cast(SCHEMAS[name.partition("/")[0]]), hidden, compression="zstd")
        with hidden.open("rb") as stream:
            os.fsync(stream.fileno())
        crash_point("archive_file_written")
        hidden.rename(final)
        return name

    def _sync_directories(self, names: Iterable[str]) -> None:
        """A rename is a change of its directory, and a new directory one of the directory above it."""
        for directory in {parent for name in names for parent in Path(name).parents}:
            descriptor = os.open(self.directory / directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _remove_leftovers(self) -> None:
        counting = {name for segment in self.segments.values() for name in segment.files}
        for table in SCHEMAS:
            # Only what this module has named: a person may keep files of their own here.
            for path in (self.directory / table).rglob("part-*.parquet"):
                name = str(path.relative_to(self.directory))
                if FILE.fullmatch(name) and name not in counting:
                    path.unlink()
            for path in (self.directory / table).rglob(_hidden("part-*.parquet")):
                path.unlink()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """For a block that reads a file of an archive: raises `ConfigurationError` if it is gone or damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is gone: put it back, or make the archive anew") from error
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} is damaged: {str(error)[:200]}; make the archive anew") from error


def _number(segment: Segment) -> int:
    return segment.number


def _loaded(path: Path, kind: type[Any]) -> Any:
    try:
        with path.open("rb") as stream:
            return kind.model_validate_json(stream.read(_MOST_SEGMENT_BYTES))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path.parent} is no archive: it has no {path.name}") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{path} is damaged: {where}: {first['msg']}; make the archive anew") from error


def _take(lock: IO[str], directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"another `rollstream archive` writes to {directory}: end it first") from error


def _refuse_others(directory: Path) -> None:
    """A new archive begins empty: its tables must not lie beside the files of somebody else."""
    own = (_SEGMENTS, _LOCK, _hidden(_IDENTITY))
    found = sorted(path.name for path in directory.iterdir() if path.name not in own)
    if found:
        raise ConfigurationError(
            f"{directory} is no archive and has other files ({', '.join(found[:3])}): name an empty directory"
        )


def _hidden(name: str) -> str:
    """A name that no reader takes for a file of the table: some of them look at hidden files too."""
    return f".{name}.tmp"


def _replace(path: Path, value: BaseModel) -> None:
    hidden = path.with_name(_hidden(path.name))
    with hidden.open("w") as stream:
        stream.write(value.model_dump_json())
        stream.flush()
        os.fsync(stream.fileno())
    hidden.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot write below {directory}: {error.strerror or error}; free space, or name another directory"
        ) from error
