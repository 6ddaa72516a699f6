"""Reads the rollouts of an archive, a row at a time. Somebody may write to it meanwhile."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.archive.archive import Archive
from rollstream.archive.reading import OPEN, groups_of, steps_of
from rollstream.archive.tables import ROLLOUTS
from rollstream.environments.rubric import RewardTurn
from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.prompt import Message, ToolCall
from rollstream.schemas.rollout import FinishReason, Status, ToolAnswer

GroupOutcome = tuple[str, int | None]
"""How a group closed, and the step that trained on it."""

_BATCH_ROWS: Final = 256
_COLUMNS: Final = (
    "partition", "offset", "rollout_id", "group_id", "prompt_id", "environment", "messages", REFERENCE,
    "metadata", "turns", "rollout_status", "finish_reason", "status", "failure_code", "failure_message", "reward",
    "details",
)  # fmt: skip

_OF_STEP: Final = ("ledger_offset", "kind", "weight_version", "parent_version")
_OF_GROUP: Final = ("ledger_offset", "group_id", "outcome", "trained_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """One record of `scored`, as far as it is replayed. `reward` is None unless it was scored.

    `messages`: as submitted. `tools`: of the prompt, each a JSON text. `tool_calls`: of the last turn, unless its text
    holds them. `was_completed`: the model answered, though its answer may have no reward, since the scoring failed.
    `finish_reason`: of the last turn.
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
    turns: tuple[RewardTurn, ...]
    observations: dict[str, str]
    was_completed: bool
    finish_reason: str | None
    status: str
    failure: str | None
    reward: float | None
    outcome: str
    trained_step: int | None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each turn."""
        return tuple(turn.text for turn in self.turns)


def read_rollouts(archive: Archive) -> Iterator[Archived]:
    """Every record, those of a partition in their order. Memory: the rows of one file without tokens, and all outcomes.

    Raises `ConfigurationError` if a file is damaged.
    """
    outcomes = _outcomes(archive)
    for file in archive.row_files(ROLLOUTS):
        for batch in archive.table(file, _COLUMNS).to_batches(_BATCH_ROWS):
            yield from (_archived(row, outcomes) for row in batch.to_pylist())


def _outcomes(archive: Archive) -> dict[str, GroupOutcome]:
    groups = groups_of(archive, steps_of(archive, _OF_STEP), _OF_GROUP)
    outcomes = groups[groups.survives]
    steps = outcomes.trained_step.astype(object).where(outcomes.trained_step.notna(), None)
    return {
        group: (outcome, None if step is None else int(step))
        for group, outcome, step in zip(outcomes.group_id, outcomes.outcome, steps, strict=True)
    }


def _archived(row: dict[str, Any], outcomes: Mapping[str, GroupOutcome]) -> Archived:
    code, turns, details = row["failure_code"], json.loads(row["turns"]), json.loads(row["details"])
    outcome, trained_step = outcomes.get(row["group_id"], (OPEN, None))
    read = tuple(map(_turn, turns))
    return Archived(
        place=(row["partition"], row["offset"]),
        messages=tuple(map(Message.model_validate, json.loads(row["messages"]))),
        tools=tuple(details["prompt"].get("tools", ())),
        # Calls that a server told apart from its text. A text of sampled tokens holds them as the model wrote them.
        tool_calls=read[-1].tool_calls if turns and not turns[-1]["num_tokens"] else (),
        metadata=json.loads(row["metadata"]),
        turns=read,
        # Rows of before agents have none.
        observations=details["rollout"].get("observations", {}),
        was_completed=row["rollout_status"] == Status.COMPLETED.value,
        outcome=outcome,
        trained_step=trained_step,
        failure=None if code is None else f"{code}: {row['failure_message']}",
        **{name: row[name] for name in ("rollout_id", "group_id", "prompt_id", "environment", REFERENCE,
                                        "finish_reason", "status", "reward")},
    )  # fmt: skip


def _turn(turn: dict[str, Any]) -> RewardTurn:
    return RewardTurn(
        text=turn["text"],
        turn_type=turn["turn_type"],
        turn_number=turn["turn_number"],
        reasoning=turn.get("reasoning", ""),
        finish_reason=FinishReason(turn["finish_reason"]),
        tool_calls=tuple(map(ToolCall.model_validate, turn["tool_calls"])),
        tool_answers=tuple(map(ToolAnswer.model_validate, turn["tool_answers"])),
        num_completion_tokens=turn["num_tokens"] or None,
    )
