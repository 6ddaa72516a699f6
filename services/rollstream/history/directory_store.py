"""A weight store in a directory. Readers never see half a version, and check every file."""

import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from rollstream.history.weight_files import (
    FileMarks,
    StoredWeights,
    check_content,
    check_names,
    read_manifest,
    refuse_unnamed,
    verify,
    write_manifest,
)
from rollstream.process.files import DirectoryLock, free_bytes, is_full, move, sync_all
from rollstream.process.terminal import shown
from rollstream.schemas.errors import CorruptWeightsError, RollstreamError, WeightStoreError
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
_LONGEST_PATH = 4096  # Linux's bound
_FILE = "file://"


class DirectoryWeightStore:
    """Versions as directories `<version>-<incarnation>/` below a root that the trainer and the generators can reach."""

    def __init__(self, root: Path) -> None:
        self._root = _normal(root)  # without `..`, as in the directories that uris name
        self._checked = FileMarks()

    def probe(self, *, writes: bool) -> None:
        """Nothing: a directory is made when it is first written, and each call says what is wrong."""

    def write(self, name: str, save: Callable[[Path], None]) -> StoredWeights:
        final = self._root / name
        files: list[WeightFile] = []

        def save_and_describe(directory: Path) -> None:
            save(directory)
            # Before it has its final name: a trainer that took over may delete it from then on.
            files.extend(write_manifest(directory))

        write_durably(final, save_and_describe)
        return StoredWeights(uri=final.as_uri(), files=tuple(files))

    def fetch(self, uri: str, files: Sequence[WeightFile] | None) -> Path:
        """The directory itself, which others may write to: ask `confirm` after its use."""
        try:
            directory = directory_below(self._root, uri)
        except ValueError as error:
            raise CorruptWeightsError(str(error)) from error
        wanted = read_manifest(directory) if files is None else files
        self._checked = FileMarks()
        check_names(directory, wanted)
        self._checked = FileMarks.of(directory, wanted)  # before the sums: a change while they are made counts too
        for file in wanted:
            verify(directory, file)
        refuse_unnamed(directory, wanted)
        return directory

    def confirm(self) -> None:
        self._checked.confirm()

    def read(self, name: str, file: str) -> bytes:
        path = self._root / name / file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CorruptWeightsError(f"{path} can't be read: {error.strerror}") from error
        check_content(str(path), file, content, read_manifest(path.parent))
        return content

    def serve(self, uri: str) -> None:
        """Nothing: there are no copies."""

    def holds(self, uri: str) -> bool | None:
        if not self._root.is_dir():
            return None
        try:
            return directory_below(self._root, uri).is_dir()
        except (ValueError, OSError):
            return False

    def names(self, mark: str) -> set[str]:
        return names_below(self._root, mark)

    def delete(self, name: str) -> None:
        delete_atomically(self._root / name)

    def sweep(self) -> None:
        sweep(self._root)


def directory_below(root: Path, uri: str) -> Path:
    """The directory that a record names by a file:// `uri`; raises `ValueError` if it does not lie below `root`.

    Nothing outside of `root` is looked at.
    """
    path = _normal(Path(unquote(uri.removeprefix(_FILE))))
    if not uri.startswith(f"{_FILE}/") or "\0" in str(path) or len(str(path)) > _LONGEST_PATH:
        raise ValueError(f"{shown(uri)} is no directory of this machine: expected file:///path")
    tops = (_normal(root), Path(os.path.realpath(root)))
    # First by name alone: the real path is looked up on the disk, which may hang where another machine's is mounted.
    if not any(top in path.parents for top in tops) or tops[1] not in Path(os.path.realpath(path)).parents:
        raise ValueError(f"{shown(uri)} does not lie below {root}")
    return path


def _normal(path: Path) -> Path:
    """The absolute path without `..`; nothing is looked up on the disk for it."""
    return Path(os.path.normpath(path.absolute()))


def write_durably(final: Path, save: Callable[[Path], None]) -> None:
    """Make the directory `final` from what `save` writes. It has a hidden name until every file is on disk.

    Raises `WeightStoreError` if the disk is full, or `save` fails for another reason, or `final` exists.
    """
    with writing(final.parent, final.name) as hidden:
        save(hidden)
        # Before the rename: after a power failure a version with its final name must be complete.
        sync_all(hidden)
        if final.exists():
            raise WeightStoreError(f"{final} exists already: a version is written once by an incarnation")
        move(hidden, final)


@contextmanager
def writing(root: Path, name: str) -> Iterator[Path]:
    """A hidden directory below `root` for files that are being written; at the end it is removed, if still there.

    It is locked, see `sweep`. What fails in the block is raised as `WeightStoreError`.
    """
    hidden = root / f".writing-{name}-{uuid.uuid4().hex[:8]}"
    try:
        # Inside: the error says how much room was left, which is more once the files are removed.
        with _raising_weight_store_error(root):
            hidden.mkdir(parents=True)
            with _locked(hidden):
                yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def names_below(root: Path, mark: str) -> set[str]:
    """Names of the directories `<version>-<incarnation>` below `root` whose incarnation begins with `mark`."""
    return {path.name for path in root.glob(f"*-{mark}*") if re.fullmatch(r"\d+-\w+", path.name) and path.is_dir()}


def delete_atomically(directory: Path) -> None:
    """Delete `directory`, if it exists. A reader sees all of it or nothing, even if this process dies meanwhile."""
    hidden = directory.parent / f".deleted-{directory.name}-{uuid.uuid4().hex[:8]}"
    with suppress(FileNotFoundError):  # a trainer that took over deletes what this process wrote
        move(directory, hidden)
    shutil.rmtree(hidden, ignore_errors=True)  # `sweep` removes what cannot be deleted now


def sweep(root: Path) -> None:
    """Remove what dead processes left half-written or half-deleted below `root`.

    A writer locks what it writes, and nothing that is locked is removed. A suspended writer keeps its lock: when it
    goes on, its commit must tell it that it is fenced.
    """
    for hidden in (*root.glob(".writing-*"), *root.glob(".deleted-*")):
        with suppress(OSError):  # locked, removed meanwhile, or the file system has no locks
            if (lock := DirectoryLock.tried(hidden)) is None:
                continue
            try:
                shutil.rmtree(hidden)
                _LOG.info("removed %s, which a process that died had left", hidden)
            finally:
                lock.release()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock `directory` while the block runs; the kernel releases the lock when this process dies."""
    lock = None
    with suppress(OSError):  # without locks `sweep` cannot lock either, and removes nothing
        lock = DirectoryLock.tried(directory)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


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
        fix = "free space or move it" if is_full(error) else "check the directory and its permissions"
        raise WeightStoreError(f"cannot write below {root}: {error.strerror}; {_room(root)}; {fix}") from error
    except Exception as error:
        said = str(error).partition("\n")[0]  # torch adds a stack of its own
        raise WeightStoreError(
            f"cannot write below {root}: {type(error).__name__}: {said}; {_room(root)}; free space or move it if the "
            "disk is full"
        ) from error


def _room(root: Path) -> str:
    return f"{free_bytes(root) / 2**20:.0f} MiB are free"
