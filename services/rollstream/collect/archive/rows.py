"""Reads the rollouts of an archive, a row at a time, from the files that count."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.collect.archive.store import Store
from rollstream.collect.archive.tables import ROLLOUTS
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.rollout import Status

_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """One record of `scored`, as far as it is replayed. `reward` is None unless it was scored.

    `texts`: the text of each turn. `messages`: as submitted, in JSON types. `was_completed`: the model answered, though
    its answer may have no reward, since the scoring failed.
    """

    place: tuple[int, int]
    rollout_id: str
    group_id: str
    prompt_id: str
    environment: str
    messages: list[dict[str, Any]]
    reference_answer: str | None
    metadata: dict[str, str]
    texts: tuple[str, ...]
    was_completed: bool
    status: str
    failure: str | None
    reward: float | None
    outcome: str
    trained_step: int | None


def read_rollouts(store: Store) -> Iterator[Archived]:
    """Every rollout, in the order in which they were archived. Memory: a few hundred rows, without tokens."""
    columns = [
        "partition", "offset", "rollout_id", "group_id", "prompt_id", "environment", "messages", "reference_answer",
        "metadata", "turns", "rollout_status", "status", "failure_code", "failure_message", "reward", "outcome",
        "trained_step",
    ]  # fmt: skip
    for path in store.files(ROLLOUTS):
        try:
            for batch in pq.ParquetFile(path).iter_batches(_BATCH_ROWS, columns=columns):
                yield from map(_archived, batch.to_pylist())
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} is damaged: {str(error)[:200]}; make the archive anew") from error


def _archived(row: dict[str, Any]) -> Archived:
    code = row["failure_code"]
    return Archived(
        place=(row["partition"], row["offset"]),
        messages=json.loads(row["messages"]),
        metadata=json.loads(row["metadata"]),
        texts=tuple(turn["text"] for turn in json.loads(row["turns"])),
        was_completed=row["rollout_status"] == Status.COMPLETED.value,
        failure=None if code is None else f"{code}: {row['failure_message']}",
        **{name: row[name] for name in ("rollout_id", "group_id", "prompt_id", "environment", "reference_answer",
                                        "status", "reward", "outcome", "trained_step")},
    )  # fmt: skip
