"""Copies of versions on this machine's disk, of what lies in an object store.

A copy is a directory with the version's name. A file in it counts once its size and sum are right, which each use
checks: so what a killed process left is completed, and whole files are not read from the store again.

Processes may share the directory. Each locks the copies that it writes (exclusively) or uses (shared); a copy that
nobody has locked may be deleted. The kernel releases the locks of a process that dies.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rollstream.history.directory_store import delete_atomically, sweep
from rollstream.history.weight_files import num_bytes, path_of, refuse_unnamed, verify
from rollstream.process.files import DirectoryLock
from rollstream.schemas.errors import CorruptWeightsError, WeightStoreError
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1

Download = Callable[[WeightFile, Path], None]
"""Writes one file of a version to a path, and checks its sum."""


class WeightCache:
    """At most `max_bytes` of copies below `root`, those that serve included."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self._max_bytes = max_bytes
        sweep(root)  # what killed processes left half-written or half-deleted
        self._fetched: DirectoryLock | None = None
        self._serving: DirectoryLock | None = None

    def fetch(self, name: str, files: Sequence[WeightFile], download: Download) -> Path:
        """The directory with a copy of the version; what is missing in it is downloaded.

        It stays until another one is fetched, or for longer, see `serve`. Raises what `download` raises, and
        `WeightStoreError` if there is no room, or if another process takes too long to download the same version.
        """
        directory = self.root / name
        lock, is_whole = self._locked(directory, files)
        try:
            if not is_whole:
                self._make_room(name, num_bytes(files))
                _complete(directory, files, download)
                lock.share()
            refuse_unnamed(directory, files)
        except BaseException as error:
            with suppress(OSError):  # versions that the store does not have shall leave nothing
                directory.rmdir()
            lock.release()
            if isinstance(error, OSError):
                raise WeightStoreError(
                    f"cannot keep a copy in {directory}: {error.strerror}; free space, or move [storage] cache"
                ) from error
            raise
        os.utime(directory)
        self._hold(lock)
        return directory

    def serve(self, name: str) -> None:
        """An engine runs on the copy of this name, the one fetched last: keep it until the next call."""
        if self._fetched is None or self._fetched.directory.name != name:
            return
        before, self._serving, self._fetched = self._serving, self._fetched, None
        if before is not None:
            before.release()

    def _locked(self, directory: Path, files: Sequence[WeightFile]) -> tuple[DirectoryLock, bool]:
        """The copy, locked, and whether it is whole: shared then, else for this process alone, to complete it.

        Another process may complete it meanwhile and share it for as long as it runs, so it is looked at again and
        again.
        """
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < give_up:
            lock = _shared(directory)
            if not _missing(directory, files):
                return lock, True
            lock.release()
            self._let_go_of(directory)
            if (own := _tried(directory)) is not None:
                return own, False
            time.sleep(_POLL_SECONDS)
        raise _in_use(directory)

    def _let_go_of(self, directory: Path) -> None:
        """Drop this process's own locks on a copy that is damaged: they would keep it from being mended."""
        if self._fetched is not None and self._fetched.directory == directory:
            self._fetched.release()
            self._fetched = None
        if self._serving is not None and self._serving.directory == directory:
            self._serving.release()
            self._serving = None

    def _hold(self, lock: DirectoryLock) -> None:
        before, self._fetched = self._fetched, lock
        if before is not None:
            before.release()

    def _make_room(self, name: str, wanted: int) -> None:
        """Delete copies that nobody uses, the one used longest ago first, until `wanted` bytes fit beside the rest."""
        others = [path for path in self.root.iterdir() if path.is_dir() and path.name[0] != "." and path.name != name]
        sizes = {path: _size(path) for path in others}
        for path in sorted(others, key=_used_at):
            if sum(sizes.values()) + wanted <= self._max_bytes:
                return
            if _delete_if_unused(path):
                _LOG.info("deleted the copy %s, to make room for %s", path, name)
                del sizes[path]
        if (used := sum(sizes.values())) + wanted > self._max_bytes:
            raise WeightStoreError(
                f"no room for version {name} in {self.root}: it has {wanted} bytes, copies in use have {used}, all "
                f"together at most {self._max_bytes}; raise [storage] cache_bytes"
            )


def _shared(directory: Path) -> DirectoryLock:
    """Make the directory if need be, and hold it as one of many."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < give_up:
        if (lock := _tried(directory, is_shared=True)) is not None:
            return lock
        time.sleep(_POLL_SECONDS)
    raise _in_use(directory)


def _tried(directory: Path, *, is_shared: bool = False) -> DirectoryLock | None:
    """Make the directory if need be, and hold it; None if others do."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return DirectoryLock.tried(directory, is_shared=is_shared)
    except OSError as error:
        raise WeightStoreError(
            f"cannot make {directory}: {error.strerror}; check [storage] cache and its permissions"
        ) from error


def _in_use(directory: Path) -> WeightStoreError:
    return WeightStoreError(f"another process has used {directory} for {_PATIENCE_SECONDS:.0f} s: trying again later")


def _missing(directory: Path, files: Sequence[WeightFile]) -> list[WeightFile]:
    return [file for file in files if not _is_whole(directory, file)]


def _is_whole(directory: Path, file: WeightFile) -> bool:
    try:
        verify(directory, file)
    except CorruptWeightsError:
        return False
    return True


def _complete(directory: Path, files: Sequence[WeightFile], download: Download) -> None:
    for file in _missing(directory, files):
        path = path_of(directory, file.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        download(file, path)


def _delete_if_unused(directory: Path) -> bool:
    with suppress(OSError):
        if (lock := DirectoryLock.tried(directory)) is not None:
            try:
                delete_atomically(directory)
            finally:
                lock.release()
            return True
    return False


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # another process deletes it
            total += path.stat().st_size if path.is_file() else 0
    return total


def _used_at(directory: Path) -> float:
    with suppress(FileNotFoundError):
        return directory.stat().st_mtime
    return 0.0
