"""Streams as files: `<output_dir>/streams/<topic>/<instance>/<partition>/0.jsonl`, one JSON line a write."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from rollstream.process.files import held, writable
from rollstream.process.stop import Stop
from rollstream.rc_actor.lines import Line, LineWriter, SingleStreamSpec, StreamSpec
from rollstream.rows.row import MAX_ROW_BYTES
from rollstream.schemas.errors import ConfigurationError

POLL_SECONDS: Final = 0.1


class FileStreams:
    """The backend `files`: for one machine, or a directory that several share. One process at a time writes a file."""

    max_bytes = MAX_ROW_BYTES

    @contextmanager
    def writer(self, spec: StreamSpec, *, appends: bool) -> Iterator[LineWriter]:
        """Raises `ConfigurationError` if another process writes there, and what `writable` raises."""
        with ExitStack() as stack:
            files = {partition: path_of(spec, partition) for partition in spec.partitions}
            for path in files.values():
                stack.enter_context(held(path))
            yield _FileWriter(
                {number: stack.enter_context(_opened(path, appends=appends)) for number, path in files.items()}
            )

    @contextmanager
    def lines(self, spec: SingleStreamSpec, *, start: int, stop: Stop | None) -> Iterator[Iterator[Line]]:
        """A last line without its end is being written, or its writer died: it is no line yet.

        Raises `ConfigurationError` without a file, unless it is waited for, and for one that was cut short.
        """
        path = path_of(spec, spec.partition)
        while stop is not None and not path.exists():
            if stop.wait(POLL_SECONDS):
                yield iter(())
                return
        try:
            stream = path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"cannot read the stream {path}: {error.strerror}") from error
        with stream:
            yield _lines(stream, path, start, stop)


def path_of(spec: StreamSpec, partition: int) -> Path:
    """The file of a partition."""
    return spec.exp_path / "streams" / spec.topic / str(spec.instance) / str(partition) / "0.jsonl"


class _FileWriter:
    """Writes whole lines, see `LineWriter`."""

    def __init__(self, streams: dict[int, IO[bytes]]) -> None:
        self._streams = streams

    def write(self, partition: int, content: bytes) -> int:
        """On a full disk what was written of the line is taken away again."""
        stream = self._streams[partition]
        begin = stream.tell()
        try:
            with writable(Path(stream.name)):
                # Unbuffered, so that nothing of it is left to be written later.
                left = memoryview(content + b"\n")
                while left:
                    left = left[stream.write(left) :]
                os.fdatasync(stream.fileno())
        except BaseException:
            with suppress(OSError):
                stream.truncate(begin)
                stream.seek(begin)
            raise
        return stream.tell()


@contextmanager
def _opened(path: Path, *, appends: bool) -> Iterator[IO[bytes]]:
    """To write at the end of its last whole line: a writer that was killed may have left the begin of another."""
    with writable(path):
        stream = path.open("r+b" if appends and path.exists() else "wb", buffering=0)
    with stream:
        with writable(path):
            stream.truncate(_whole_lines(stream))
            stream.seek(0, os.SEEK_END)
        yield stream


def _whole_lines(stream: IO[bytes]) -> int:
    """Bytes up to the end of the last whole line; reads from the end of the file."""
    end = stream.seek(0, os.SEEK_END)
    while end:
        begin = max(end - 2**20, 0)
        stream.seek(begin)
        found = stream.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _lines(stream: IO[bytes], path: Path, start: int, stop: Stop | None) -> Iterator[Line]:
    if start > (size := os.fstat(stream.fileno()).st_size):
        raise ConfigurationError(f"{path} has {size} bytes, and is to be read from byte {start} on: it was cut short")
    stream.seek(start)
    number = 0
    while (line := _whole_line(stream, path, stop)) is not None:
        number += 1
        where = f"{path} line {number}" if not start else f"{path} line {number} from byte {start} on"
        if len(line) <= MAX_ROW_BYTES:
            yield Line(where, stream.tell(), line)
        else:
            yield Line(where, stream.tell(), None, f"it is longer than {MAX_ROW_BYTES} bytes")


def _whole_line(stream: IO[bytes], path: Path, stop: Stop | None) -> bytes | None:
    """The next line, or the first bytes of one above the bound; None at the end, or when the stop is asked."""
    begin = stream.tell()
    while True:
        line = stream.readline(MAX_ROW_BYTES + 2)
        if line.endswith(b"\n"):
            return line
        if len(line) > MAX_ROW_BYTES and _is_passed(stream):
            return line
        stream.seek(begin)
        if stop is None or not _has_grown(stream, path, begin + len(line), stop):
            return None


def _is_passed(stream: IO[bytes]) -> bool:
    """Whether the rest of a line ends; it is passed over."""
    while piece := stream.readline(2**20):
        if piece.endswith(b"\n"):
            return True
    return False


def _has_grown(stream: IO[bytes], path: Path, read: int, stop: Stop) -> bool:
    """Wait until there is more than was read; False if the stop is asked before."""
    while not stop.wait(POLL_SECONDS):
        size = os.fstat(stream.fileno()).st_size
        if size != read:
            if size < stream.tell():
                raise ConfigurationError(f"{path} was cut short while it was read: read it again from its start")
            return True
    return False
