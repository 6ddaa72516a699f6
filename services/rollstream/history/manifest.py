"""`manifest.json`, the last file of a version or a checkpoint: which files it has, with sizes and sums."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from rollstream.history.weight_files import check_sum, described, files_below
from rollstream.schemas.errors import CorruptWeightsError
from rollstream.schemas.weights import WeightFile

_LOG = logging.getLogger(__name__)
MANIFEST: Final = "manifest.json"


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


def write_manifest(directory: Path) -> tuple[WeightFile, ...]:
    """Describe what was written into `directory`, there and to the caller. Every file is read once more."""
    files = tuple(described(directory, path) for path in files_below(directory))
    (directory / MANIFEST).write_text(VersionManifest(files=files).model_dump_json())
    return files


def check_content(place: str, name: str, content: bytes, files: Sequence[WeightFile]) -> None:
    """Raise `CorruptWeightsError` unless `content` is that of the file of this name."""
    found = next((file for file in files if file.name == name), None)
    if found is None:
        raise CorruptWeightsError(f"{place}: {MANIFEST} has no sum of it")
    check_sum(place, found, hashlib.sha256(content).hexdigest())


def read_manifest(directory: Path) -> tuple[WeightFile, ...] | None:
    """The files that a directory should have; None for one that was written before there were manifests."""
    path = directory / MANIFEST
    try:
        return VersionManifest.parse(str(path), path.read_bytes()).files
    except FileNotFoundError:
        if not directory.is_dir():
            raise CorruptWeightsError(f"{directory} is not there") from None
        _LOG.warning("%s has no %s: its files are taken as they are, without sums", directory, MANIFEST)
        return None
    except OSError as error:
        raise CorruptWeightsError(f"{path} can't be read: {error.strerror}") from error
