"""Checkpoints: what a trainer restarts from. Each is a directory, written once, with two parts.

The state of the training backend (model, optimizer), and the trainer's position in the topics that it reads.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollstream.bus.message import Partition
from rollstream.history.weight_store import delete_atomically, directory_below, sweep, write_durably
from rollstream.schemas.errors import ConfigurationError

_POSITION: Final = "position.json"
_STATE: Final = "state"


class NextOffset(BaseModel):
    """The next offset to read of one partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    partition: int = Field(ge=0)
    offset: int = Field(ge=0)


class Position(BaseModel):
    """Where the trainer was when it wrote a checkpoint.

    Cluster and topic ids are kept because offsets mean nothing on another cluster, or on a topic made anew.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    weight_version: int
    step: int
    cluster_id: str
    topic_ids: dict[str, str] = Field(description="Topic name → id, of the topics that are read")
    next_offsets: tuple[NextOffset, ...] = Field(description="Lowest offset of any record whose group is open")
    open_groups: tuple[str, ...] = Field(description="Ids of the groups that were open")

    def offsets(self) -> dict[Partition, int]:
        """The offsets by partition."""
        return {(entry.topic, entry.partition): entry.offset for entry in self.next_offsets}


def as_next_offsets(offsets: Mapping[Partition, int]) -> tuple[NextOffset, ...]:
    """Offsets as a checkpoint holds them, in order."""
    return tuple(
        NextOffset(topic=topic, partition=number, offset=offset) for (topic, number), offset in sorted(offsets.items())
    )


class CheckpointStore:
    """Checkpoints as directories `<version>-<incarnation>/` below a root.

    One that no surviving ledger entry names counts as absent.
    """

    def __init__(self, root: Path, incarnation: str) -> None:
        self._root = root.absolute()
        self._incarnation = incarnation
        self._written: list[Path] = []

    def write(self, position: Position, save_state: Callable[[Path], None]) -> str:
        """Write a new checkpoint, all or nothing, and fsync it; returns its uri. Raises `WeightStoreError`."""
        final = self._root / f"{position.weight_version}-{self._incarnation}"

        def save(directory: Path) -> None:
            (directory / _STATE).mkdir()
            save_state(directory / _STATE)
            (directory / _POSITION).write_text(position.model_dump_json(indent=2))

        write_durably(final, save)
        self._written.append(final)
        return final.as_uri()

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` of those that this process wrote; it never touches others."""
        while len(self._written) > keep:
            delete_atomically(self._written.pop(0))

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        sweep(self._root)


def checkpoint_directory(uri: str, root: Path) -> Path:
    """The checkpoint that the ledger names; raises `ConfigurationError` unless it lies below `root`.

    Entries come from a topic that others may write, and a trainer becomes what its checkpoint holds.
    """
    try:
        return directory_below(root, uri)
    except ValueError as error:
        raise ConfigurationError(
            f"the ledger names a checkpoint elsewhere: {error}; set [trainer] checkpoints to where the trainers before "
            "this one wrote theirs, or go back to a version before it with `rollstream weights rollback`"
        ) from error


def read_position(directory: Path) -> Position:
    """The position in a checkpoint; raises `ConfigurationError` if it is not there."""
    try:
        return Position.model_validate_json((directory / _POSITION).read_text())
    except (OSError, ValidationError) as error:
        raise ConfigurationError(
            f"the ledger names checkpoint {directory}, which cannot be read: {error}; bring the directory back, "
            "or go back to a version whose checkpoint exists with `rollstream weights rollback`"
        ) from error


def state_directory(directory: Path) -> Path:
    """Where a checkpoint keeps the backend's state."""
    return directory / _STATE
