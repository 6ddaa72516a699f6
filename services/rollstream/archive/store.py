"""The files of an archive, and which of them count. kill -9 at any point loses nothing and doubles nothing.

Rows are written in segments: what was read from one topic in one go, at most some thousand rows. A segment's files are
written under hidden names, synced and renamed. Then its JSON file below `segments/` is replaced at once: from that
moment the segment counts, with the offsets to read on from. So an offset never counts without its rows.

A segment is written again as its next generation when the fate of its rows has changed, and the newest one of a topic
also when records have come, until it is full; files whose rows stay the same are kept. So an archive that was written
in many passes has no more files than one that was written at once. Files that no segment names are of a writer that
died: the next writer removes them, by the note that is written before the first of them. A reader that takes all files
of a directory, as pandas does, may see rows of both generations until then, and miss rows that move between two
directories meanwhile; `files` of the segments are those that count.

A row stays in its segment. So who reads a segment as a whole, and again if it was replaced meanwhile, finds each row
once, also beside a writer.

`head.json` says from which few segments a writer goes on. Readers need all of them, and writers too after an entry of
the ledger that reaches far back.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.archive.branch import BranchState
from rollstream.archive.disk import hidden, load, replace, sync_directories, writable
from rollstream.archive.segments import FORMAT, Head, Identity, Note, Segment, TopicName
from rollstream.archive.tables import FILE, SCHEMAS
from rollstream.process.crash_points import crash_point
from rollstream.schemas.errors import ConfigurationError

_IDENTITY: Final = "archive.json"
_HEAD: Final = "head.json"
_NOTE: Final = "writing.json"
_SEGMENTS: Final = "segments"
_LOCK: Final = ".lock"


class Store:
    """The segments of one archive. With `writing` there is one at a time; several may read."""

    def __init__(self, directory: Path, head: Head | None = None) -> None:
        """Load the segments, those of `head` and newer ones alone if it is given.

        Raises `ConfigurationError` if this is no archive, or its files are damaged.
        """
        self.directory = directory
        self.identity = _identity(directory)
        self.head = head
        self.segments = {one.number: one for one in (self._all() if head is None else self._since(head))}

    @classmethod
    @contextmanager
    def writing(cls, directory: Path, identity: Identity) -> Iterator[Self]:
        """The only writer of an archive, which is made if it does not exist.

        Raises `ConfigurationError` if somebody else writes, or it is of another run or cluster.
        """
        with writable(directory):
            (directory / _SEGMENTS).mkdir(parents=True, exist_ok=True)
            lock = (directory / _LOCK).open("w")
        with lock:
            _take(lock, directory)
            if not (directory / _IDENTITY).exists():
                _refuse_others(directory)
                with writable(directory):
                    replace(directory / _IDENTITY, identity)
            note = load(directory / _NOTE, Note)
            # Without a note everything that lies there must be compared with everything that counts.
            store = cls(directory, None if note is None else load(directory / _HEAD, Head))
            store.require(identity)
            with writable(directory):
                store._remove_leftovers(note)
            yield store

    def require(self, identity: Identity) -> None:
        """Raise `ConfigurationError` unless the archive is of these topics."""
        own = self.identity
        if own == identity:
            return
        if (own.run, own.cluster_id) == (identity.run, identity.cluster_id):
            raise ConfigurationError(
                f"{self.directory} is the archive of topics of {own.run} that were deleted since, and made again: name "
                "another directory for the new ones"
            )
        raise ConfigurationError(
            f"{self.directory} is the archive of run {own.run} on cluster {own.cluster_id}, not of {identity.run} on "
            f"{identity.cluster_id}: name another directory"
        )

    def newest(self, topic: TopicName) -> Segment | None:
        """The segment of a topic that was begun last."""
        return max(self.of_topic(topic), key=_number, default=None)

    def next_offsets(self, topic: TopicName) -> dict[int, int]:
        """From where each partition is to be read on; empty before the first segment."""
        newest = self.newest(topic)
        return {} if newest is None else newest.next_offsets

    def next_number(self) -> int:
        """The number of the next new segment."""
        return max(self.segments, default=-1) + 1

    def of_topic(self, topic: TopicName) -> list[Segment]:
        """The segments of a topic, in the order in which they were read."""
        return sorted((one for one in self.segments.values() if one.topic == topic), key=_number)

    def num_rows(self, topic: TopicName) -> int:
        """Rows of a topic, those of segments that are not loaded too."""
        before = 0 if self.head is None else self.head.num_rows.get(topic, 0)
        return before + sum(segment.num_rows for segment in self.of_topic(topic))

    def num_unreadable(self) -> int:
        """Records that could not be decoded."""
        before = 0 if self.head is None else self.head.num_unreadable
        return before + sum(segment.num_unreadable for segment in self.segments.values())

    def reloaded(self, number: int) -> Segment:
        """A segment as it is now: another process may have written its next generation."""
        path = self._segment_file(number)
        segment = load(path, Segment)
        if segment is None:
            raise ConfigurationError(f"{path} is gone: put it back, or make the archive anew")
        return segment

    def named(self, table: str, segments: Iterable[Segment]) -> list[Path]:
        """The files of a table that these segments name, in order, also those that somebody has deleted."""
        names = (name for segment in sorted(segments, key=_number) for name in segment.files)
        return [self.directory / name for name in names if name.startswith(f"{table}/")]

    def files(self, table: str, segments: Iterable[Segment]) -> list[Path]:
        """Those of them that are there."""
        return [path for path in self.named(table, segments) if path.is_file()]

    def since_day(self, table: str, day: str) -> list[Path]:
        """The files of a table from a day on, also of segments that are not loaded. For the writer: all of them count.

        `day`: as in the names of directories.
        """
        root = self.directory / table
        days = sorted(path for path in root.glob("day=*") if path.name >= f"day={day}")
        return [
            path
            for directory in days
            for path in sorted(directory.glob("part-*.parquet"))
            if FILE.fullmatch(str(path.relative_to(self.directory)))
        ]

    def commit(self, segment: Segment, tables: Mapping[str, pa.Table], kept: Sequence[str] = ()) -> None:
        """Write a segment, or its next generation. `tables`: directory below the archive -> its rows.

        `kept`: files of the generation before that the next one has too.
        """
        old = self.segments.get(segment.number)
        removed = () if old is None else tuple(name for name in old.files if name not in kept)
        part = f"part-{segment.number:08d}-g{segment.generation}.parquet"
        names = tuple(f"{place}/{part}" for place in tables)
        final = segment.model_copy(update={"files": (*kept, *names)})
        with writable(self.directory):
            replace(self.directory / _NOTE, Note(number=segment.number, files=names + removed))
            crash_point("archive_note_written")
            for name, table in zip(names, tables.values(), strict=True):
                self._write(name, table)
            # A rename is a change of its directory, and a new directory one of the directory above it.
            sync_directories({self.directory / parent for name in names for parent in Path(name).parents})
            crash_point("archive_files_written")
            replace(self._segment_file(segment.number), final)
            crash_point("archive_segment_replaced")
            self.segments[segment.number] = final
            for name in removed:
                (self.directory / name).unlink(missing_ok=True)
                crash_point("archive_file_removed")

    def keep(self, live: Set[int], branch: BranchState) -> None:
        """Go on with these segments alone, also at the next start. The newest one of each topic must be among them."""
        rows = Counter[TopicName](None if self.head is None else self.head.num_rows)
        num_unreadable = 0 if self.head is None else self.head.num_unreadable
        for number in self.segments.keys() - live:
            rows[self.segments[number].topic] += self.segments[number].num_rows
            num_unreadable += self.segments[number].num_unreadable
        head = Head(
            next_number=self.next_number(),
            live=tuple(sorted(live)),
            num_rows=dict(rows),
            num_unreadable=num_unreadable,
            branch=branch,
        )
        if head == self.head:
            return
        with writable(self.directory):
            replace(self.directory / _HEAD, head)
        crash_point("archive_head_replaced")
        self.head = head
        self.segments = {number: self.segments[number] for number in live}

    def load_all(self) -> None:
        """Load every segment: something reaches further back than what is live."""
        self.head = None
        self.segments = {segment.number: segment for segment in self._all()}

    def _all(self) -> Iterator[Segment]:
        for path in sorted((self.directory / _SEGMENTS).glob("[0-9]*.json")):
            if path.stem.isdecimal():
                yield self.reloaded(int(path.stem))

    def _since(self, head: Head) -> Iterator[Segment]:
        for number in head.live:
            yield self.reloaded(number)
        # Numbers have no gaps.
        for number in count(head.next_number):
            segment = load(self._segment_file(number), Segment)
            if segment is None:
                return
            yield segment

    def _segment_file(self, number: int) -> Path:
        return self.directory / _SEGMENTS / f"{number:08d}.json"

    def _write(self, name: str, table: pa.Table) -> None:
        final = self.directory / name
        final.parent.mkdir(parents=True, exist_ok=True)
        part = final.with_name(hidden(final.name))
        pq.write_table(table.cast(SCHEMAS[name.partition("/")[0]]), part, compression="zstd")
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        crash_point("archive_file_written")
        part.rename(final)

    def _remove_leftovers(self, note: Note | None) -> None:
        if note is None:
            self._remove_all_leftovers()
            return
        segment = load(self._segment_file(note.number), Segment)
        counting = () if segment is None else segment.files
        for name in note.files:
            path = self.directory / name
            path.with_name(hidden(path.name)).unlink(missing_ok=True)
            if name not in counting:
                path.unlink(missing_ok=True)

    def _remove_all_leftovers(self) -> None:
        counting = {name for segment in self.segments.values() for name in segment.files}
        for table in SCHEMAS:
            # Only what this module has named: a person may keep files of their own here.
            for path in (self.directory / table).rglob("part-*.parquet"):
                name = str(path.relative_to(self.directory))
                if FILE.fullmatch(name) and name not in counting:
                    path.unlink()
            for path in (self.directory / table).rglob(hidden("part-*.parquet")):
                path.unlink()


def _identity(directory: Path) -> Identity:
    identity = load(directory / _IDENTITY, Identity)
    if identity is None:
        raise ConfigurationError(f"{directory} is no archive: it has no {_IDENTITY}")
    if identity.format != FORMAT:
        raise ConfigurationError(
            f"{directory} is an archive of format {identity.format}, and this rollstream knows {FORMAT}: use the one "
            "that wrote it, or a newer one"
        )
    return identity


def _number(segment: Segment) -> int:
    return segment.number


def _take(lock: IO[str], directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(f"another `rollstream archive` writes to {directory}: end it first") from error


def _refuse_others(directory: Path) -> None:
    """A new archive begins empty: its tables must not lie beside the files of somebody else."""
    own = (_SEGMENTS, _LOCK, hidden(_IDENTITY))
    found = sorted(path.name for path in directory.iterdir() if path.name not in own)
    if found:
        raise ConfigurationError(
            f"{directory} is no archive and has other files ({', '.join(found[:3])}): name an empty directory"
        )
