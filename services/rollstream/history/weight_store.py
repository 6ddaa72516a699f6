"""The weight store: weight versions as files. Readers never see half a version, and check every file."""

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import unquote, urlsplit

from rollstream.schemas.errors import (
    ConfigurationError,
    CorruptWeightsError,
    RollstreamError,
    WeightStoreError,
)
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Uris and names come from a topic that others may write: one of some megabytes would not fit into any report.
_LONGEST_SHOWN = 200
_LONGEST_PATH = 4096  # Linux's bound
_FILE = "file://"


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
        """A local directory with these files, whose sizes and sums were checked; raises `CorruptWeightsError`.

        What lies outside of this store is refused unseen: anybody who can write `weights` chooses `uri` and `files`.
        """
        ...

    def holds(self, uri: str) -> bool | None:
        """Whether the version's files are here, unread; None if the store itself can't be seen from this machine."""
        ...

    def names(self, mark: str) -> set[str]:
        """Names of the complete versions whose writers' incarnations begin with `mark`."""
        ...

    def delete(self, name: str) -> None:
        """Delete the version of this name, if it exists."""
        ...

    def sweep(self) -> None:
        """Remove versions that killed processes left incomplete. Those that a living process writes stay."""
        ...


class DirectoryWeightStore:
    """Versions as directories `<version>-<incarnation>/` below a root that the trainer and the generators can reach."""

    def __init__(self, root: Path) -> None:
        self._root = _normal(root)  # without `..`, as in the directories that uris name

    def write(self, version: int, incarnation: str, save: Callable[[Path], None]) -> StoredWeights:
        """See `WeightStore.write`."""
        final = self._root / f"{version}-{incarnation}"
        files: list[WeightFile] = []

        def save_and_describe(directory: Path) -> None:
            save(directory)
            # Before it has its final name: a trainer that took over may delete it from then on.
            files.extend(_described(directory, path) for path in sorted(directory.rglob("*")) if path.is_file())

        write_durably(final, save_and_describe)
        return StoredWeights(uri=final.as_uri(), files=tuple(files))

    def fetch(self, uri: str, files: Sequence[WeightFile]) -> Path:
        """See `WeightStore.fetch`."""
        try:
            directory = directory_below(self._root, uri)
        except ValueError as error:
            raise CorruptWeightsError(f"{error}; is weight_store the trainer's?") from error
        names = _names(directory, files)
        for file in files:
            _verify(directory, file)
        _refuse_unnamed(directory, names)
        return directory

    def holds(self, uri: str) -> bool | None:
        """See `WeightStore.holds`."""
        if not self._root.is_dir():
            return None
        try:
            return directory_below(self._root, uri).is_dir()
        except (ValueError, OSError):
            return False

    def names(self, mark: str) -> set[str]:
        """See `WeightStore.names`."""
        return names_below(self._root, mark)

    def delete(self, name: str) -> None:
        """See `WeightStore.delete`."""
        delete_atomically(self._root / name)

    def sweep(self) -> None:
        """See `WeightStore.sweep`."""
        sweep(self._root)


def open_weight_store(root: Path | str) -> WeightStore:
    """The store at `root`: a directory path or a file:// uri; raises `ConfigurationError` for other schemes."""
    parts = urlsplit(str(root))
    if parts.scheme not in ("", "file"):
        raise ConfigurationError(f"weight_store {str(root)!r}: scheme {parts.scheme!r} is unknown, use a directory")
    return DirectoryWeightStore(Path(unquote(parts.path)) if parts.scheme else Path(root))


def directory_below(root: Path, uri: str) -> Path:
    """The directory that a record names by a file:// `uri`; raises `ValueError` if it does not lie below `root`.

    Nothing outside of `root` is looked at.
    """
    path = _normal(Path(unquote(uri.removeprefix(_FILE))))
    if not uri.startswith(f"{_FILE}/") or "\0" in str(path) or len(str(path)) > _LONGEST_PATH:
        raise ValueError(f"{_shown(uri)} is no directory of this machine: expected file:///path")
    tops = (_normal(root), Path(os.path.realpath(root)))
    # First by name alone: the real path is looked up on the disk, which may hang where another machine's is mounted.
    if not any(top in path.parents for top in tops) or tops[1] not in Path(os.path.realpath(path)).parents:
        raise ValueError(f"{_shown(uri)} does not lie below {root}")
    return path


def _normal(path: Path) -> Path:
    """The absolute path without `..`; nothing is looked up on the disk for it."""
    return Path(os.path.normpath(path.absolute()))


def write_durably(final: Path, save: Callable[[Path], None]) -> None:
    """Make the directory `final` from what `save` writes. It has a hidden name until every file is on disk.

    Raises `WeightStoreError` if the disk is full, or `save` fails for another reason, or `final` exists.
    """
    hidden = final.parent / f".writing-{final.name}-{uuid.uuid4().hex[:8]}"
    try:
        # Inside: the error says how much room was left, which is more once the files are removed.
        with _raising_weight_store_error(final.parent):
            hidden.mkdir(parents=True)
            with _locked(hidden):
                save(hidden)
                # Before the rename: after a power failure a version with its final name must be complete.
                for path in (hidden, *hidden.rglob("*")):
                    _fsync(path)
                if final.exists():
                    raise WeightStoreError(f"{final} exists already: a version is written once by an incarnation")
                hidden.rename(final)
            _fsync(final.parent)  # the rename itself is a change of the parent directory
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def names_below(root: Path, mark: str) -> set[str]:
    """Names of the directories `<version>-<incarnation>` below `root` whose incarnation begins with `mark`."""
    return {path.name for path in root.glob(f"*-{mark}*") if re.fullmatch(r"\d+-\w+", path.name) and path.is_dir()}


def directory_name(uri: str) -> str:
    """The name of a version's or a checkpoint's directory; the same wherever its root is mounted."""
    return PurePosixPath(unquote(urlsplit(uri).path)).name


def delete_atomically(directory: Path) -> None:
    """Delete `directory`, if it exists. A reader sees all of it or nothing, even if this process dies meanwhile."""
    hidden = directory.parent / f".deleted-{directory.name}-{uuid.uuid4().hex[:8]}"
    with suppress(FileNotFoundError):  # a trainer that took over deletes what this process wrote
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
    """Turn whatever fails while files are written into `WeightStoreError`.

    Libraries of tensors have errors of their own for a full disk, which do not even name it.
    """
    try:
        yield
    except RollstreamError:
        raise
    except OSError as error:
        fix = "free space or move it" if error.errno in _FULL else "check the directory and its permissions"
        raise WeightStoreError(f"cannot write below {root}: {error.strerror}; {_room(root)}; {fix}") from error
    except Exception as error:
        said = str(error).partition("\n")[0]  # torch adds a stack of its own
        raise WeightStoreError(
            f"cannot write below {root}: {type(error).__name__}: {said}; {_room(root)}; free space or move it if the "
            "disk is full"
        ) from error


def _room(root: Path) -> str:
    existing = next((path for path in (root, *root.parents) if path.exists()), Path("/"))
    return f"{shutil.disk_usage(existing).free / 2**20:.0f} MiB are free"


def _described(directory: Path, path: Path) -> WeightFile:
    name = path.relative_to(directory).as_posix()
    return WeightFile(name=name, num_bytes=path.stat().st_size, sha256=_sha256(path))


def _names(directory: Path, files: Sequence[WeightFile]) -> set[PurePosixPath]:
    """The names of a version's files. None, or one that comes often and would be read as often, are refused."""
    names = {PurePosixPath(file.name) for file in files}
    if not names or len(names) < len(files):
        raise CorruptWeightsError(
            f"{directory}: the version's record names {len(files)} files, {len(names)} different ones; expected at "
            "least one, and each once"
        )
    return names


def _refuse_unnamed(directory: Path, names: set[PurePosixPath]) -> None:
    """Engines read every file of tensors that is there: refuse those that the record has no sum for."""
    unnamed = sorted(path.name for path in directory.glob("*.safetensors") if PurePosixPath(path.name) not in names)
    if unnamed:
        raise CorruptWeightsError(f"{directory} holds {unnamed[:3]}, for which the version's record has no sum")


def _verify(directory: Path, file: WeightFile) -> None:
    path = _path_of(directory, file.name)
    try:
        found = path.stat()
        # A device, a pipe or a directory has no end or no content.
        if not stat.S_ISREG(found.st_mode):
            raise CorruptWeightsError(f"{path} is no regular file")
        if found.st_size != file.num_bytes:
            raise CorruptWeightsError(f"{path}: expected {file.num_bytes} bytes, got {found.st_size}")
        sha256 = _sha256(path)
    except OSError as error:
        raise CorruptWeightsError(
            f"{_shown(str(path))}: expected {file.num_bytes} bytes, got none: {error.strerror}"
        ) from error
    if sha256 != file.sha256:
        raise CorruptWeightsError(f"{path}: expected sha256 {file.sha256[:64]}, got {sha256}")


def _path_of(directory: Path, name: str) -> Path:
    """The file of this name in a version's directory; raises `CorruptWeightsError` if it lies elsewhere."""
    relative = PurePosixPath(name)
    is_below = "\0" not in name and ".." not in relative.parts and not relative.is_absolute()
    # A link in the directory must not lead out of it either.
    if not is_below or not Path(os.path.realpath(directory / name)).is_relative_to(os.path.realpath(directory)):
        raise CorruptWeightsError(f"weight file {_shown(name)} lies outside of {directory}")
    return directory / name


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


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
