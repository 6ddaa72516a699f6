"""Where weight versions lie as files: written so that half a version is never seen, verified whenever they are read."""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from rollstream.schemas.errors import (
    ConfigurationError,
    CorruptWeightsError,
    WeightStoreError,
)
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEARLY_FULL_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """A version that is safely on disk."""

    uri: str
    files: tuple[WeightFile, ...]


class WeightStore(Protocol):
    """Keeps weight versions. A version that no surviving ledger entry names counts as absent."""

    def write(self, version: int, incarnation: str, save: Callable[[Path], None]) -> StoredWeights:
        """Store what `save` writes into the directory it is given; raises `WeightStoreError`. All or nothing."""
        ...

    def fetch(self, uri: str, files: Sequence[WeightFile]) -> Path:
        """A local directory whose files have the given sizes and sums; raises `CorruptWeightsError`."""
        ...

    def delete(self, uri: str, incarnation: str) -> None:
        """Delete a version that `incarnation` wrote; absent is fine; another's raises `WeightStoreError`."""
        ...

    def sweep(self) -> None:
        """Remove what killed processes left half-written; what a living one writes stays."""
        ...


class DirectoryWeightStore:
    """Versions as directories `<version>-<incarnation>/` below a root that trainer and generators share."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def write(self, version: int, incarnation: str, save: Callable[[Path], None]) -> StoredWeights:
        """See `WeightStore.write`."""
        final = self._root / f"{version}-{incarnation}"
        write_durably(final, save)
        with _explaining(self._root):
            files = tuple(_described(final, path) for path in sorted(final.rglob("*")) if path.is_file())
        return StoredWeights(uri=final.as_uri(), files=files)

    def fetch(self, uri: str, files: Sequence[WeightFile]) -> Path:
        """See `WeightStore.fetch`."""
        directory = self._directory(uri)
        for file in files:
            _verify(directory, file)
        return directory

    def delete(self, uri: str, incarnation: str) -> None:
        """See `WeightStore.delete`."""
        directory = self._directory(uri)
        _, _, writer = directory.name.partition("-")
        if directory.parent != self._root or writer != incarnation:
            raise WeightStoreError(
                f"{directory} was not written below {self._root} by {incarnation}: only its writer deletes it"
            )
        if directory.exists():
            delete_at_once(directory)

    def sweep(self) -> None:
        """See `WeightStore.sweep`."""
        sweep(self._root)

    def _directory(self, uri: str) -> Path:
        parts = urlsplit(uri)
        if parts.scheme != "file":
            raise CorruptWeightsError(f"{uri!r} is no directory: a directory store reads file:// uris")
        return Path(unquote(parts.path))


def open_weight_store(root: Path | str) -> WeightStore:
    """The store at `root`: a directory path or a file:// uri; raises `ConfigurationError` for other schemes."""
    parts = urlsplit(str(root))
    if parts.scheme not in ("", "file"):
        raise ConfigurationError(f"weight_store {str(root)!r}: scheme {parts.scheme!r} is unknown, use a directory")
    return DirectoryWeightStore(Path(unquote(parts.path)) if parts.scheme else Path(root))


def write_durably(final: Path, save: Callable[[Path], None]) -> None:
    """Make the directory `final` from what `save` writes: hidden until every file is on disk.

    Raises `WeightStoreError` if the disk is full or `final` exists.
    """
    hidden = final.parent / f".writing-{final.name}-{uuid.uuid4().hex[:8]}"
    with _explaining(final.parent):
        hidden.mkdir(parents=True)
        with _held(hidden):
            try:
                save(hidden)
                for path in (hidden, *hidden.rglob("*")):
                    _fsync(path)
                if final.exists():
                    raise WeightStoreError(f"{final} exists already: a version is written once by an incarnation")
                hidden.rename(final)
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
        _fsync(final.parent)


def delete_at_once(directory: Path) -> None:
    """Delete `directory`: a reader sees all of it or nothing, even if this process dies half-way."""
    doomed = directory.parent / f".deleted-{directory.name}-{uuid.uuid4().hex[:8]}"
    directory.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what processes that died left below `root` while they wrote or deleted.

    What is being written is locked by its writer, and stays: also that of one that is only stopped, which must get as
    far as to be told that it is fenced.
    """
    for hidden in (*root.glob(".writing-*"), *root.glob(".deleted-*")):
        with suppress(OSError):  # locked, or gone meanwhile, or a file system that can't tell who lives
            descriptor = os.open(hidden, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(hidden)
                _LOG.info("removed %s, which a process that died had left", hidden)
            finally:
                os.close(descriptor)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Lock `directory` for as long as the block runs and this process lives."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # where there are no locks, nothing is swept either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _explaining(root: Path) -> Iterator[None]:
    """Turn what a full or unwritable disk raises into `WeightStoreError`; tensor libraries raise types of their own."""
    try:
        yield
    except OSError as error:
        mend = "free space or move weight_store" if error.errno in _FULL else "check the directory and its permissions"
        raise WeightStoreError(f"cannot write weights below {root}: {error.strerror}; {_room(root)}; {mend}") from error
    except RuntimeError as error:
        if shutil.disk_usage(root).free >= _NEARLY_FULL_BYTES:
            raise
        raise WeightStoreError(f"cannot write weights below {root}: the disk is full; {_room(root)}") from error


def _room(root: Path) -> str:
    existing = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    return f"{shutil.disk_usage(existing).free / 2**20:.0f} MiB are free"


def _described(directory: Path, path: Path) -> WeightFile:
    name = path.relative_to(directory).as_posix()
    return WeightFile(name=name, num_bytes=path.stat().st_size, sha256=_sha256(path))


def _verify(directory: Path, file: WeightFile) -> None:
    path = directory / file.name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise CorruptWeightsError(f"weight file {file.name!r} lies outside of {directory}")
    try:
        size = path.stat().st_size
        if size != file.num_bytes:
            raise CorruptWeightsError(f"{path}: expected {file.num_bytes} bytes, got {size}")
        found = _sha256(path)
    except OSError as error:
        raise CorruptWeightsError(f"{path}: expected {file.num_bytes} bytes, got none: {error.strerror}") from error
    if found != file.sha256:
        raise CorruptWeightsError(f"{path}: expected sha256 {file.sha256}, got {found}")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
