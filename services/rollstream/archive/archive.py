"""One archive: what it is of, which files it has, and up to where each partition is archived.

The names of the files say all of it. So `kill -9` at any point loses nothing and doubles nothing: a file counts when it
has its name, and who writes next goes on where the newest name ends.

From one piece of a topic several tables may get rows. Each goes on by its own names, and the main table of the topic is
written last: it says from where the topic is read. What another table has already, a process had written that was
killed before the main one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from rollstream.archive.files import Files, open_files
from rollstream.archive.tables import SCHEMAS, RowFile, empty_file
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.errors import ConfigurationError

FORMAT: Final = 2
_IDENTITY: Final = "archive.json"
_VIEWS: Final = "views.sql"
_MOST_BYTES: Final = 2**20
"""Of the identity."""
_STATE: Final = b"rollstream"
"""Key of what a file says beside its rows."""


class ArchiveIdentity(BaseModel):
    """What an archive is of. Offsets of another cluster's topics mean nothing here."""

    # Another format may have other fields: then its number is what is said about it.
    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    run: str
    cluster_id: str
    topic_ids: dict[str, str]


class Archive:
    """The files of one archive, those that were there at its start and those that were added with `add`."""

    def __init__(self, files: Files, names: Sequence[str]) -> None:
        self.files = files
        self.place = files.place
        self.identity = _identity(files)
        self._row_files: set[RowFile] = set()
        self._ends: dict[tuple[str, str], dict[int, int]] = {}
        for name in names:
            if (file := RowFile.of(name)) is not None:
                self._note(file)

    @classmethod
    def reading(cls, location: str | Path, storage: StorageSettings | None = None) -> Self:
        """The archive at a directory, s3://bucket/prefix, gs:// or az://; `storage` says how to reach a bucket.

        Raises `ConfigurationError` if there is none, `WeightStoreError` if the bucket does not answer.
        """
        files = open_files(location, storage)
        return cls(files, files.names())

    @classmethod
    @contextmanager
    def writing(
        cls, location: str | Path, identity: ArchiveIdentity, storage: StorageSettings | None = None
    ) -> Iterator[Self]:
        """The archive of this identity, for the process that adds to it; it is made if it does not exist.

        Raises what `reading` does, and `ConfigurationError` if it is of another run or cluster, or another process on
        this machine writes to it.
        """
        files = open_files(location, storage)
        with files.writing():
            names = files.names()
            if _IDENTITY not in names:
                _refuse_others(files, names)
                files.create(_IDENTITY, identity.model_dump_json().encode())
            archive = cls(files, names)
            archive.require(identity)
            files.remove_parts()
            for name, content in _fixed_files():
                if name not in names:
                    files.create(name, content)
            yield archive

    def require(self, identity: ArchiveIdentity) -> None:
        """Raise `ConfigurationError` unless the archive is of these topics."""
        own = self.identity
        if own == identity:
            return
        if (own.run, own.cluster_id) == (identity.run, identity.cluster_id):
            raise ConfigurationError(
                f"{self.place} is the archive of topics of {own.run} that were deleted since, and made again: name "
                "another directory for the new ones"
            )
        raise ConfigurationError(
            f"{self.place} is the archive of run {own.run} on cluster {own.cluster_id}, not of {identity.run} on "
            f"{identity.cluster_id}: name another directory"
        )

    def row_files(self, table: str) -> list[RowFile]:
        """The files of a table; those of a partition in the order of their offsets."""
        return sorted(file for file in self._row_files if file.table == table)

    def ends(self, table: str, topic: str) -> dict[int, int]:
        """Partition of the topic -> the offset up to which the table has its rows."""
        return dict(self._ends.get((table, topic), {}))

    def gaps(self, table: str, *, since: int | None = 0) -> list[str]:
        """Offsets that are in no file although later ones are: lost before they were archived, or deleted since.

        `since`: the first offset that is missed; None: that of the first file.
        """
        found, ends = list[str](), dict[tuple[str, int], int]()
        for file in self.row_files(table):
            partition = (file.topic, file.partition)
            if file.first > (end := ends.get(partition, file.first if since is None else since)):
                found.append(f"{file.topic}/{file.partition}: offsets {end} to {file.first - 1}")
            ends[partition] = max(end, file.end)
        return found

    def add(self, file: RowFile, rows: Iterable[Mapping[str, Any]], state: str = "") -> None:
        """Write a file. `state`: what `state` gives back."""
        table = pa.Table.from_pylist(list(rows), schema=SCHEMAS[file.table].with_metadata({_STATE: state}))
        self.files.create(file.name, _parquet(table))
        self._note(file)

    def state(self, file: RowFile) -> str:
        """What was said beside the rows of a file."""
        return str((self.table(file, []).schema.metadata or {}).get(_STATE, b"").decode())

    def table(self, file: RowFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file. Raises `ConfigurationError` if it is damaged, or was deleted meanwhile."""

        def take(stream: IO[bytes]) -> pa.Table | str:
            try:
                return pq.read_table(stream, columns=None if columns is None else list(columns))
            except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
                return str(error)[:200]

        try:
            taken = self.files.read(file.name, take)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{error}: it was deleted meanwhile; run the same again") from error
        if isinstance(taken, str):
            raise ConfigurationError(f"{self.place}/{file.name} is damaged: {taken}; make the archive anew")
        return taken

    def tables(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a table. Memory: all of these columns."""
        empty = SCHEMAS[table].empty_table()
        found = [self.table(file, columns) for file in self.row_files(table)]
        chosen = empty if columns is None else empty.select(list(columns))
        return pa.concat_tables([chosen, *found], promote_options="default")

    def _note(self, file: RowFile) -> None:
        self._row_files.add(file)
        ends = self._ends.setdefault((file.table, file.topic), {})
        ends[file.partition] = max(file.end, ends.get(file.partition, 0))


def _parquet(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd")
    return bytes(stream.getvalue().to_pybytes())


def _fixed_files() -> Iterator[tuple[str, bytes]]:
    """What every archive has."""
    yield _VIEWS, Path(__file__).with_name(_VIEWS).read_bytes()
    for table, schema in SCHEMAS.items():
        yield empty_file(table), _parquet(schema.empty_table())


def _identity(files: Files) -> ArchiveIdentity:
    try:
        identity = ArchiveIdentity.model_validate_json(files.read(_IDENTITY, lambda stream: stream.read(_MOST_BYTES)))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{files.place} is no archive: it has no {_IDENTITY}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ConfigurationError(f"{files.place}/{_IDENTITY} is damaged: {first['msg']}") from error
    if identity.format != FORMAT:
        raise ConfigurationError(
            f"{files.place} is an archive of format {identity.format}, and this rollstream knows {FORMAT}: use the one "
            "that wrote it, or a newer one"
        )
    return identity


def _refuse_others(files: Files, names: Sequence[str]) -> None:
    """A new archive begins empty: its tables must not lie beside the files of somebody else."""
    if names:
        raise ConfigurationError(
            f"{files.place} is no archive and has other files ({', '.join(names[:3])}): name an empty directory"
        )
