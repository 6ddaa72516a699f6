"""The files of a version or a checkpoint: what they are called, and whether they are what was published.

`manifest.json`, the last file that is written, says which there are, with sizes and sums.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from rollstream.process.files import sha256_of
from rollstream.process.terminal import shown
from rollstream.schemas.errors import CorruptWeightsError
from rollstream.schemas.weights import WeightFile

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """A version whose files are all stored."""

    uri: str
    files: tuple[WeightFile, ...]


class VersionManifest(BaseModel):
    """The files of a version, and that they are all there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[WeightFile, ...]

    @classmethod
    def parse(cls, place: str, content: bytes) -> "VersionManifest":
        """Read one; `place` names it in the `CorruptWeightsError` that is raised if it is none."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise CorruptWeightsError(f"{place} is no manifest of a version") from error


@dataclass(frozen=True, slots=True)
class FileMarks:
    """What tells that files were changed: inode, size, and times of the last changes, of each by its path.

    Sums are checked, and then a library opens the same files by their names: whoever may write there could change them
    between the two.
    """

    marks: Mapping[Path, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, files: Iterable[WeightFile]) -> "FileMarks":
        """The marks as they are now. What can't be opened has none: `verify` says why."""
        paths = [path_of(directory, file.name) for file in files]
        return cls({path: mark for path in paths if (mark := _mark(path)) is not None})

    def confirm(self) -> None:
        """Raise `CorruptWeightsError` if one of the files was changed. One that was deleted is as it was read."""
        changed = [path for path, mark in self.marks.items() if _mark(path) not in (mark, None)]
        if changed:
            raise CorruptWeightsError(f"{changed[0]} was changed between the check of its sum and the end of its use")


def _mark(path: Path) -> tuple[int, ...] | None:
    """None if there is no such file."""
    try:
        # Opened, since a network file system answers `stat` from memory.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _described(directory: Path, path: Path) -> WeightFile:
    """The file at `path` with its size and sum."""
    name = path.relative_to(directory).as_posix()
    return WeightFile(name=name, num_bytes=path.stat().st_size, sha256=sha256_of(path))


def check_names(place: str | Path, files: Sequence[WeightFile]) -> None:
    """Refuse a version without files, or with one that comes twice and would be read as often."""
    names = {PurePosixPath(file.name) for file in files}
    if not names or len(names) < len(files):
        raise CorruptWeightsError(
            f"{place}: the version's record names {len(files)} files, {len(names)} different ones; expected at "
            "least one, and each once"
        )


def refuse_unnamed(directory: Path, files: Sequence[WeightFile]) -> None:
    """Refuse files of tensors that the record has no sum for: engines read every one that is there."""
    names = {PurePosixPath(file.name) for file in files}
    unnamed = sorted(path.name for path in directory.glob("*.safetensors") if PurePosixPath(path.name) not in names)
    if unnamed:
        raise CorruptWeightsError(f"{directory} holds {unnamed[:3]}, for which the version's record has no sum")


def verify(directory: Path, file: WeightFile) -> None:
    """Raise `CorruptWeightsError` unless the file is there, with the size and the sum that the record says."""
    path = path_of(directory, file.name)
    try:
        found = path.stat()
        # A device, a pipe or a directory has no end or no content.
        if not stat.S_ISREG(found.st_mode):
            raise CorruptWeightsError(f"{path} is no regular file")
        if found.st_size != file.num_bytes:
            raise CorruptWeightsError(f"{path}: expected {file.num_bytes} bytes, got {found.st_size}")
        sha256 = sha256_of(path)
    except OSError as error:
        raise CorruptWeightsError(
            f"{shown(str(path))}: expected {file.num_bytes} bytes, got none: {error.strerror}"
        ) from error
    check_sum(str(path), file, sha256)


def check_sum(place: str, file: WeightFile, sha256: str) -> None:
    """Raise `CorruptWeightsError` unless `sha256` is the file's."""
    if sha256 != file.sha256:
        raise CorruptWeightsError(f"{place}: expected sha256 {file.sha256[:64]}, got {sha256}")


def path_of(directory: Path, name: str) -> Path:
    """The file of this name in a version's directory; raises `CorruptWeightsError` if it lies elsewhere."""
    relative = PurePosixPath(name)
    is_below = "\0" not in name and ".." not in relative.parts and not relative.is_absolute()
    # A link in the directory must not lead out of it either.
    if not is_below or not Path(os.path.realpath(directory / name)).is_relative_to(os.path.realpath(directory)):
        raise CorruptWeightsError(f"weight file {shown(name)} lies outside of {directory}")
    return directory / name


def num_bytes(files: Iterable[WeightFile]) -> int:
    return sum(file.num_bytes for file in files)


def write_manifest(directory: Path) -> tuple[WeightFile, ...]:
    """Describe what was written into `directory`, there and to the caller. Every file is read once more."""
    files = tuple(_described(directory, path) for path in files_below(directory))
    (directory / MANIFEST).write_text(VersionManifest(files=files).model_dump_json())
    return files


def check_content(place: str, name: str, content: bytes, files: Sequence[WeightFile]) -> None:
    """Raise `CorruptWeightsError` unless `content` is that of the file of this name."""
    found = next((file for file in files if file.name == name), None)
    if found is None:
        raise CorruptWeightsError(f"{place}: {MANIFEST} has no sum of it")
    check_sum(place, found, hashlib.sha256(content).hexdigest())


def read_manifest(directory: Path) -> tuple[WeightFile, ...]:
    """The files that a directory should have; raises `CorruptWeightsError` if nothing there says so."""
    path = directory / MANIFEST
    try:
        return VersionManifest.parse(str(path), path.read_bytes()).files
    except OSError as error:
        raise CorruptWeightsError(f"{path} can't be read: {error.strerror}") from error
