"""Checkpoints: what a trainer restarts from. Each is a directory `<version>-<incarnation>/`, written once: three parts.

One that no surviving ledger entry names is as absent.
The state of the learner (model, optimizer), the trainer's position in the topics that it reads, and what it
knew of the run's history, so that the next trainer reads only what came since.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollstream.bus.message import Partition
from rollstream.history.known import HistorySnapshot
from rollstream.history.weight_store import WeightStore
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError

_LOG = logging.getLogger(__name__)
_POSITION: Final = "position.json"
_HISTORY: Final = "history.json"
_STATE: Final = "state"
_Part = TypeVar("_Part", bound=BaseModel)


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
        return {(entry.topic, entry.partition): entry.offset for entry in self.next_offsets}


def as_next_offsets(offsets: Mapping[Partition, int]) -> tuple[NextOffset, ...]:
    """Offsets as a checkpoint holds them, in order."""
    return tuple(
        NextOffset(topic=topic, partition=number, offset=offset) for (topic, number), offset in sorted(offsets.items())
    )


def write_checkpoint(
    store: WeightStore, name: str, position: Position, history: HistorySnapshot, save_state: Callable[[Path], None]
) -> str:
    """Write a new checkpoint, all or nothing, and durably; returns its uri. Raises `WeightStoreError`."""

    def save(directory: Path) -> None:
        (directory / _STATE).mkdir()
        save_state(directory / _STATE)
        (directory / _POSITION).write_text(position.model_dump_json(indent=2))
        (directory / _HISTORY).write_text(history.model_dump_json())

    return store.write(name, save).uri


def newest_history(store: WeightStore, mark: str, ledger_topic_id: str) -> HistorySnapshot | None:
    """The newest snapshot of this ledger among the checkpoints of its trainers; None if none can be read."""
    histories = (snapshot for _, snapshot in _read(store, mark, _HISTORY, HistorySnapshot))
    return next((found for found in histories if found.ledger_topic_id == ledger_topic_id), None)


def positions(store: WeightStore) -> Iterator[tuple[str, Position]]:
    """Every checkpoint's name and position, newest version first; unreadable ones are left out."""
    return _read(store, "", _POSITION, Position)


def _read(store: WeightStore, mark: str, part: str, kind: type[_Part]) -> Iterator[tuple[str, _Part]]:
    """One part of each checkpoint whose writer's incarnation begins with `mark`, newest version first."""
    for name in sorted(store.names(mark), key=lambda name: int(name.partition("-")[0]), reverse=True):
        try:
            yield name, kind.model_validate_json(store.read(name, part))
        except (CorruptWeightsError, ValidationError) as error:
            said = str(error).partition("\n")[0]
            _LOG.warning("%s of checkpoint %s can't be read, an older one has to do: %s", part, name, said)


def checkpoint_directory(store: WeightStore, uri: str) -> Path:
    """The checkpoint that the ledger names, as a local directory; raises `ConfigurationError` if it is elsewhere.

    Entries come from a topic that others may write, and a trainer becomes what its checkpoint holds.
    """
    try:
        return store.fetch(uri, None)
    except CorruptWeightsError as error:
        raise ConfigurationError(
            f"the ledger names a checkpoint that is not here, or damaged: {error}; set [trainer] checkpoints to "
            "where the trainers before this one wrote theirs, or go back to a version before it with `rollstream "
            "weights rollback`"
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
    """Where a checkpoint keeps the learner's state."""
    return directory / _STATE
