"""Streams of groups and statistics, as files or on Kafka, behind the functions that PipelineRL has for them.

set_streams_backend("files")
spec = SingleStreamSpec(output_dir, "rc_actor")
with write_to_streams(spec) as writer:
    writer.write(texts)
with read_stream(spec) as reader:
    for texts in reader.groups():
        ...
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from rollstream.process.stop import Stop
from rollstream.rc_actor.file_streams import FileStreams
from rollstream.rc_actor.lines import Line, LineWriter, SingleStreamSpec, StreamBackend, StreamSpec
from rollstream.rc_actor.training_text import TrainingText, group_of
from rollstream.rows.jsonl import json_value
from rollstream.schemas.errors import ConfigurationError, EncodeError, RecordTooLargeError, UnusableRowError

_LOG = logging.getLogger(__name__)

MAX_ENTRY_BYTES: Final = 5 * 2**20
"""A line, unless a person sets `shared_memory_entry_size`."""
_MOST_LOGGED: Final = 10

_chosen: StreamBackend | None = None


class StreamEntry(NamedTuple):
    """A value of a stream, where it was read, and the position after it."""

    value: Any
    where: str
    next: int


def set_streams_backend(name: str, on_kafka: StreamBackend | None = None) -> StreamBackend:
    """Choose where the streams of this process lie: `files`, or `kafka` with its backend. It can't be changed later.

    Raises `ConfigurationError` for another name, and for `redis`.
    """
    global _chosen  # noqa: PLW0603 (the original's function sets it once for the process)
    backend = backend_named(name, on_kafka)
    if _chosen is not None and type(_chosen) is not type(backend):
        raise ConfigurationError(f"streams.backend {name}: this process has chosen another one; choose once")
    _chosen = backend
    return backend


def backend_named(name: str, on_kafka: StreamBackend | None = None) -> StreamBackend:
    """The backend of this name. Raises as `set_streams_backend` does."""
    if name == "files":
        return FileStreams()
    if name == "kafka" and on_kafka is not None:
        return on_kafka
    if name == "redis":
        raise ConfigurationError(
            "streams.backend redis is refused: its messages are pickled, so who can write there runs code in every "
            "reader, and it drops old ones; use kafka, or files on one machine"
        )
    raise ConfigurationError(f"streams.backend {name[:50]!r} must be files or kafka, and kafka needs a run")


class StreamWriter:
    """Writes values of JSON, or models, to the partitions of a stream in turn."""

    def __init__(self, writer: LineWriter, partitions: range, max_bytes: int, backend_bytes: int) -> None:
        """`max_bytes` of a line as a person set it, `backend_bytes` as the backend takes it: the smaller one counts."""
        self._writer = writer
        self._partitions = partitions
        self._turns = cycle(partitions)
        self._max_bytes = min(max_bytes, backend_bytes)
        self._advice = "raise shared_memory_entry_size, or ask" if max_bytes < backend_bytes else "ask"

    def write(self, value: Any, partition: int | None = None, *, key: str = "") -> int:
        """Write one line, of `partition` or of the next in turn; returns the position after it. May block for long.

        `key`: whose value it is, for messages. Raises `RecordTooLargeError` above the bound, and nothing is written
        then; `EncodeError` for what is no JSON.
        """
        try:
            content = to_json(value)
        except PydanticSerializationError as error:
            raise EncodeError(f"{key or 'a value'} can't be written to a stream: {str(error)[:500]}") from error
        if len(content) > self._max_bytes:
            raise RecordTooLargeError(
                f"{key or 'a value'} has {len(content)} bytes as a line of a stream, the bound is {self._max_bytes}: "
                f"{self._advice} for fewer samples, steps or tokens"
            )
        if partition is not None and partition not in self._partitions:
            raise ConfigurationError(f"partition {partition} is not written here, but {list(self._partitions)[:10]}")
        return self._writer.write(next(self._turns) if partition is None else partition, content)


class StreamReader:
    """Reads a stream. `bad` counts the lines that can't be read, by reason; the first of them are logged by place."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self.bad: Counter[str] = Counter()

    def read(self) -> Iterator[Any]:
        """The values; without `follows` up to the end of this moment, else until the stop is asked."""
        return (entry.value for entry in self.entries())

    def entries(self) -> Iterator[StreamEntry]:
        """The same with their places."""
        for line in self._lines:
            if line.content is None:
                self.note("it can't be read as a line", line.where, line.why)
                continue
            try:
                value = json_value(line.content.decode())
            except RecursionError:
                self.note("its JSON is nested too deeply", line.where)
            except UnicodeDecodeError:
                self.note("it is not UTF-8", line.where)
            except ValueError as error:
                self.note("it is no valid JSON", line.where, f"it {error}")
            else:
                yield StreamEntry(value, line.where, line.next)

    def groups(self) -> Iterator[list[TrainingText]]:
        """The values as groups of texts; one that is none is counted too."""
        for entry in self.entries():
            try:
                yield group_of(entry.value)
            except UnusableRowError as error:
                self.note(error.reason, entry.where, str(error))

    def note(self, reason: str, where: str, found: str = "") -> None:
        """Count a value that can't be used; also for those who read what is in the values."""
        self.bad[reason] += 1
        if (count := self.bad.total()) <= _MOST_LOGGED:
            _LOG.warning("passed over %s: %s", where, found or reason)
        elif count == _MOST_LOGGED + 1:
            _LOG.warning("passed over %s too; more are counted, not named", where)


@contextmanager
def write_to_streams(
    spec: StreamSpec,
    mode: Literal["w", "a"] = "a",
    *,
    backend: StreamBackend | None = None,
    max_entry_bytes: int = MAX_ENTRY_BYTES,
) -> Iterator[StreamWriter]:
    """A writer of the stream; `w` begins a file anew. Raises `ConfigurationError` if another process writes there."""
    chosen = _backend(backend)
    with chosen.writer(spec, appends=mode == "a") as writer:
        yield StreamWriter(writer, spec.partitions, max_entry_bytes, chosen.max_bytes)


@contextmanager
def read_stream(
    spec: SingleStreamSpec, *, start: int = 0, follows: Stop | None = None, backend: StreamBackend | None = None
) -> Iterator[StreamReader]:
    """A reader from the position `start` on; with `follows` it waits for more until that stop is asked."""
    with _backend(backend).lines(spec, start=start, stop=follows) as lines:
        yield StreamReader(lines)


def _backend(backend: StreamBackend | None) -> StreamBackend:
    if (found := backend or _chosen) is None:
        raise ConfigurationError("no streams backend was chosen: call set_streams_backend first, e.g. with 'files'")
    return found
