"""Reads the rollouts of an archive, a row at a time, from the files that count. Somebody may write to it meanwhile."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.archive.disk import readable
from rollstream.archive.store import Store
from rollstream.archive.tables import ROLLOUTS
from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.prompt import Message, ToolCall
from rollstream.schemas.rollout import Status

_BATCH_ROWS: Final = 256
_COLUMNS: Final = (
    "partition", "offset", "rollout_id", "group_id", "prompt_id", "environment", "messages", REFERENCE,
    "metadata", "turns", "rollout_status", "finish_reason", "status", "failure_code", "failure_message", "reward",
    "outcome", "trained_step", "details",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """One record of `scored`, as far as it is replayed. `reward` is None unless it was scored.

    `texts`: the text of each turn. `messages`: as submitted. `tools`: of the prompt, each a JSON text. `tool_calls`: of
    the last turn, unless its text holds them. `was_completed`: the model answered, though its answer may have no
    reward, since the scoring failed. `finish_reason`: of the last turn.
    """

    place: tuple[int, int]
    rollout_id: str
    group_id: str
    prompt_id: str
    environment: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    reference_answer: str | None
    metadata: dict[str, str]
    texts: tuple[str, ...]
    was_completed: bool
    finish_reason: str | None
    status: str
    failure: str | None
    reward: float | None
    outcome: str
    trained_step: int | None


def read_rollouts(store: Store, gone: Callable[[Path], None]) -> Iterator[Archived]:
    """Every rollout, in the order in which they were archived. `gone` gets each file that somebody has deleted.

    Memory: the rows of one segment, without tokens. Raises `ConfigurationError` if a file is damaged.
    """
    for segment in store.of_topic("scored"):
        for table in _tables(store, segment.number, gone):
            for batch in table.to_batches(_BATCH_ROWS):
                yield from map(_archived, batch.to_pylist())


def _tables(store: Store, number: int, gone: Callable[[Path], None]) -> list[pa.Table]:
    """The rows of a segment, all of one generation: a writer may replace it meanwhile."""
    while True:
        segment = store.reloaded(number)
        tables, missing = [], []
        for path in store.named(ROLLOUTS, [segment]):
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                missing.append(path)
                continue
            with stream, readable(path):
                tables.append(pq.ParquetFile(stream).read(list(_COLUMNS)))
        if not missing or store.reloaded(number) == segment:
            for path in missing:
                gone(path)
            return tables


def _archived(row: dict[str, Any]) -> Archived:
    code, turns = row["failure_code"], json.loads(row["turns"])
    return Archived(
        place=(row["partition"], row["offset"]),
        messages=tuple(map(Message.model_validate, json.loads(row["messages"]))),
        tools=tuple(json.loads(row["details"])["prompt"].get("tools", ())),
        tool_calls=_tool_calls(turns[-1]) if turns else (),
        metadata=json.loads(row["metadata"]),
        texts=tuple(turn["text"] for turn in turns),
        was_completed=row["rollout_status"] == Status.COMPLETED.value,
        failure=None if code is None else f"{code}: {row['failure_message']}",
        **{name: row[name] for name in ("rollout_id", "group_id", "prompt_id", "environment", REFERENCE,
                                        "finish_reason", "status", "reward", "outcome", "trained_step")},
    )  # fmt: skip


def _tool_calls(turn: dict[str, Any]) -> tuple[ToolCall, ...]:
    """Calls that a server told apart from its text. A text of sampled tokens holds them as the model wrote them."""
    return () if turn["num_tokens"] else tuple(map(ToolCall.model_validate, turn["tool_calls"]))
