"""How every part of the project writes a file as a whole, and holds one for itself.

The only module that replaces files and locks them. A file is written under a hidden name beside its own, and takes its
name when all of it is on the disk: who reads it meanwhile, or after a power failure, finds the former one or the new
one. What can't be written ends a process in one of two ways. A disk that is full or broken is the machine's fault, and
a new process may find room: exit code 70. What a person must change, such as a directory without rights, is a wrong
setting: 78. So is a file that another process holds.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Literal, Self

from rollstream.schemas.errors import ConfigurationError, MachineError, RollstreamError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BROKEN: Final = (*_FULL, errno.EIO)
# Who holds it may be downloading Kafka's jars over a slow line.
_WAIT_SECONDS: Final = 900.0


def is_full(error: OSError) -> bool:
    """Whether there is no room left."""
    return error.errno in _FULL


def unwritable(path: Path, error: OSError) -> RollstreamError:
    """Why `path` can't be written, as an error of this project."""
    said = f"cannot write {path}: {error.strerror or error}"
    if error.errno in _BROKEN:
        return MachineError(f"{said}; make room, and run the same command again")
    return ConfigurationError(f"{said}; give rights there, or choose another place")


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """For a block that writes to `path`: raises `MachineError` if its disk is full, else `ConfigurationError`."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def hidden_beside(path: Path, what: str) -> Path:
    """A name beside `path` that no reader of the directory takes for one of its files."""
    return path.with_name(f".{path.name}.{what}")


@contextmanager
def opened(path: Path, place: Path) -> Iterator[IO[bytes]]:
    """`place` to write to; all of it is on the disk when the block ends. An error names `path`."""
    with writable(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        stream = place.open("wb")
    try:
        yield stream
        with writable(path):
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        # On a full disk it fails once more with what waits in its buffer; that was told above.
        with suppress(OSError):
            stream.close()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream to what replaces `path` when the block ends without an error. One process writes a path at a time."""
    part = hidden_beside(path, "part")
    try:
        with opened(path, part) as stream:
            yield stream
        with writable(path):
            move(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file as a whole. Raises what `writable` raises."""
    with replacing(path) as stream, writable(path):
        stream.write(text.encode())


def sha256_of(path: Path) -> str:
    """The hex digest of a file's content, which may be larger than the memory; raises `OSError`."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def free_bytes(path: Path) -> int:
    """Room on the disk of `path`, or of the nearest directory above it that exists."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free


def move(source: Path, target: Path) -> None:
    """Give a file or directory the name `target` on the same disk, in place of a file, if one has it.

    Raises `OSError`, also where the target is a directory that is not empty.
    """
    source.replace(target)
    _sync(target.parent)


def sync_all(path: Path) -> None:
    """Have a file, or a directory with all that is in it, on the disk; raises `OSError`."""
    for one in (path, *path.rglob("*")):
        _sync(one)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, text: str, mode: Literal["w", "x"] = "w") -> None:
    """Write a file that no other user of the machine may read, from its first byte on: it may hold passwords.

    "x" refuses a file that is there.
    """
    with open(path, mode, encoding="utf-8", opener=_open_private) as file:
        os.fchmod(file.fileno(), 0o600)  # one that was there keeps its own otherwise
        file.write(text)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class DirectoryLock:
    """A directory that this process holds until `release`, or until it and its forks have died."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def tried(cls, directory: Path, *, is_shared: bool = False) -> Self | None:
        """Hold it alone, or as one of many. None if another process holds it, or it is gone; raises `OSError`."""
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        try:
            if _locked(descriptor, directory, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX):
                return cls(directory, descriptor)
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def share(self) -> None:
        """From now on others may hold it too."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold `path`, a file or directory that need not exist, by a hidden file beside it, which is removed at the end.

    Raises `ConfigurationError` if another process holds it, or the hidden file can't be made.
    """
    lock = hidden_beside(path, "lock")
    with writable(path):
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with writable(path):
            is_mine = _locked(descriptor, lock, fcntl.LOCK_EX)
        if not is_mine:
            raise ConfigurationError(
                f"another process writes {path} right now: wait for its end, or choose another place"
            )
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def waited_for(lock: Path) -> Iterator[None]:
    """Hold the file `lock` alone, as soon as the others who want it have let go. Raises `MachineError` past a bound."""
    with lock.open("w") as file:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not _locked(file.fileno(), lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"another process has held {lock} for more than {_WAIT_SECONDS:g} s: look what that one does"
                )
            time.sleep(0.1)
        yield


def _locked(descriptor: int, path: Path, kind: int) -> bool:
    """Whether the open file is locked now, and still what has this path: it may have been removed before that."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        return False
