"""The weight store: weight versions as files. Readers never see half a version, and check every file."""

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
    """A version whose files are all on disk."""

    uri: str
    files: tuple[WeightFile, ...]


class WeightStore(Protocol):
    """Keeps weight versions. A version that no surviving ledger entry names does not count."""

    def write(self, version: int, incarnation: str, save: Callable[[Path], None]) -> StoredWeights:
        """Store all that `save` writes into the directory that it is given, or nothing; raises `WeightStoreError`."""
        ...

    def fetch(self, uri: str, files: Sequence[WeightFile]) -> Path:
        """A local directory with these files, whose sizes and sums were checked; raises `CorruptWeightsError`."""
        ...

    def delete(self, uri: str, incarnation: str) -> None:
        """Delete a version, if it exists; raises `WeightStoreError` if another incarnation wrote it."""
        ...

    def sweep(self) -> None:
        """Remove versions that killed processes left incomplete. Those that a living process writes stay."""
        ...


class DirectoryWeightStore:
    """Versions as directories `<version>-<incarnation>/` below a root that the trainer and the generators can reach."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def write(self, version: int, incarnation: str, save: Callable[[Path], None]) -> StoredWeights:
        """See `WeightStore.write`."""
        final = self._root / f"{version}-{incarnation}"
        write_durably(final, save)
        with _raising_weight_store_error(self._root):
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
            delete_atomically(directory)

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
    """Make the directory `final` from what `save` writes. It has a hidden name until every file is on disk.

    Raises `WeightStoreError` if the disk is full or `final` exists.
    """
    hidden = final.parent / f".writing-{final.name}-{uuid.uuid4().hex[:8]}"
    with _raising_weight_store_error(final.parent):
        hidden.mkdir(parents=True)
        with _locked(hidden):
            try:
                save(hidden)
                # Before the rename: after a power failure a version with its final name must be complete.
                for path in (hidden, *hidden.rglob("*")):
                    _fsync(path)
                if final.exists():
                    raise WeightStoreError(f"{final} exists already: a version is written once by an incarnation")
                hidden.rename(final)
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
        _fsync(final.parent)  # the rename itself is a change of the parent directory


def delete_atomically(directory: Path) -> None:
    """Delete `directory`. A reader sees all of it or nothing, even if this process dies meanwhile."""
    hidden = directory.parent / f".deleted-{directory.name}-{uuid.uuid4().hex[:8]}"
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)  # `sweep` removes what cannot be deleted now


def sweep(root: Path) -> None:
    """Remove what dead processes left half-written or half-deleted below `root`.

    A writer locks what it writes, and nothing that is locked is removed. A suspended writer keeps its lock: when it
    goes on, its commit must tell it that it is fenced.
    """
    for hidden in (*root.glob(".writing-*"), *root.glob(".deleted-*")):
        with suppress(OSError):  # locked, removed meanwhile, or the file system has no locks
            descriptor = os.open(hidden, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(hidden)
                _LOG.info("removed %s, which a process that died had left", hidden)
            finally:
                os.close(descriptor)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock `directory` while the block runs; the kernel releases the lock when this process dies."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # without locks `sweep` cannot lock either, and removes nothing
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _raising_weight_store_error(root: Path) -> Iterator[None]:
    """Turn errors of the disk into `WeightStoreError`. Tensor libraries raise `RuntimeError` when it is full."""
    try:
        yield
    except OSError as error:
        fix = "free space or move weight_store" if error.errno in _FULL else "check the directory and its permissions"
        raise WeightStoreError(f"cannot write weights below {root}: {error.strerror}; {_room(root)}; {fix}") from error
    except RuntimeError as error:
        # A RuntimeError may be anything: only where no room is left it is taken for a full disk.
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
    # Names come from a topic that others may write: `../` must not lead to other files.
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
        # In blocks: a weight file may be larger than the memory.
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
