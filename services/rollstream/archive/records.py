"""Records as rows of an archive. Every field has a column of its own, or is in `details` or `turns` as JSON."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rollstream.bus.message import KafkaMessage
from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.ids import group_of
from rollstream.schemas.ledger import EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import FLOAT32, INT32, Record
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored

Row = dict[str, Any]

_ARRAYS: Final = frozenset({"prompt_token_ids", "token_ids", "behavior_logprobs"})
_OF_PROMPT: Final = frozenset(
    {"prompt_id", "group_id", "purpose", "environment", "messages", REFERENCE, "group_size", "metadata",
     "submitted_at"}
)  # fmt: skip
_OF_ROLLOUT: Final = frozenset(
    {"rollout_id", "attempt_id", "group_id", "sample_index", "group_size", "prompt", "turns", "status",
     "started_at", "finished_at"}
)  # fmt: skip
_OF_SCORING: Final = frozenset(
    {"reward", "components", "status", "failure", "scorer", "scorer_version", "scored_at"}
)  # fmt: skip
_OF_ENTRY: Final = frozenset(
    {"kind", "incarnation", "step", "weight_version", "parent_version", "checkpoint", "trained", "closed", "skipped",
     "metrics", "started_at", "finished_at"}
)  # fmt: skip
_LAST_MS: Final = 253_402_300_799_000  # the end of the year 9999


def appended_at(message: KafkaMessage) -> datetime:
    """The broker's append time; 1970 if a topic has times of clients instead, beyond what a date holds."""
    milliseconds = message.timestamp_ms if 0 <= message.timestamp_ms <= _LAST_MS else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def sample_row(message: KafkaMessage, scored: RolloutScored) -> Row:
    """The row of a record of `scored`, without the outcome of its group."""
    rollout, scoring = scored.rollout, scored.scoring
    failure = scoring.failure
    last = rollout.answer
    return {
        **_place(message),
        **_asked(rollout.prompt),
        **_fields(
            rollout, "rollout_id", "attempt_id", "sample_index", "group_id", "group_size", "started_at", "finished_at"
        ),
        **_fields(scoring, "reward", "scorer", "scorer_version", "scored_at"),
        "completion": "" if last is None else last.text,
        "finish_reason": None if last is None else last.finish_reason.value,
        "num_turns": len(rollout.turns),
        "num_completion_tokens": rollout.num_completion_tokens,
        **_arrays(rollout),
        "weight_versions": list(rollout.weight_versions),
        "rollout_status": rollout.status.value,
        "turns": _turns(rollout),
        "status": scoring.status.value,
        "failure_code": None if failure is None else failure.code.value,
        "failure_message": None if failure is None else failure.message,
        "components": list(scoring.components.items()),
        "details": _json(
            scored.model_dump(mode="json", exclude={"rollout", "scoring"})
            | {
                "prompt": rollout.prompt.model_dump(mode="json", exclude=set(_OF_PROMPT)),
                "rollout": rollout.model_dump(mode="json", exclude=set(_OF_ROLLOUT)),
                "scoring": scoring.model_dump(mode="json", exclude=set(_OF_SCORING)),
            }
        ),
    }


def prompt_row(message: KafkaMessage, prompt: PromptSubmitted) -> Row:
    """The row of a record of `prompts`."""
    rest = prompt.model_dump(mode="json", exclude=set(_OF_PROMPT))
    return {**_place(message), **_asked(prompt), "details": _json(rest)}


def entry_row(message: KafkaMessage, entry: LedgerEntry) -> Row:
    """The row of a ledger entry, without whether it survives."""
    return {
        "ledger_offset": message.offset,
        "appended_at": appended_at(message),
        "kind": entry.kind.value,
        **_fields(
            entry, "incarnation", "step", "weight_version", "parent_version", "checkpoint", "started_at", "finished_at"
        ),
        "num_trained": len(entry.trained),
        "num_closed": len(entry.closed),
        "skipped": [record.model_dump() for record in entry.skipped],
        "metrics": list(entry.metrics.items()),
        "details": _json(entry.model_dump(mode="json", exclude=set(_OF_ENTRY))),
    }


def group_rows(message: KafkaMessage, entry: LedgerEntry) -> Iterator[Row]:
    """A row for each group that the entry closes, with those of its rollouts that the step used."""
    trained: dict[str, list[Row]] = {}
    for rollout in entry.trained:
        trained.setdefault(group_of(rollout.rollout_id), []).append(rollout.model_dump())
    for group in entry.closed:
        yield {
            "ledger_offset": message.offset,
            "appended_at": appended_at(message),
            "group_id": group.group_id,
            "outcome": group.outcome.value,
            "reason": group.reason,
            "reward_mean": group.reward_mean,
            # Drops between two steps belong to the step that is being gathered.
            "closed_in_step": entry.step + (entry.kind is EntryKind.DROPS),
            "trained_step": entry.step if group.outcome is GroupOutcome.TRAINED else None,
            "trained": trained.get(group.group_id, []),
        }


def unreadable_row(message: KafkaMessage, error: Exception) -> Row:
    """The row of a record that can't be decoded: where it lies, and why. Its bytes stay on the topic."""
    num_bytes = None if message.value is None else len(message.value)
    topic = message.topic.rpartition(".")[2]
    return {**_place(message), "topic": topic, "num_bytes": num_bytes, "why": str(error)}


def _fields(record: Record, *names: str) -> Row:
    return {name: getattr(record, name) for name in names}


def _place(message: KafkaMessage) -> Row:
    return {"partition": message.partition, "offset": message.offset, "appended_at": appended_at(message)}


def _asked(prompt: PromptSubmitted) -> Row:
    return {
        **_fields(prompt, "prompt_id", "group_id", "environment", REFERENCE, "group_size", "submitted_at"),
        "purpose": prompt.purpose.value,
        "messages": _json([message.model_dump(mode="json", exclude_defaults=True) for message in prompt.messages]),
        "metadata": _json(prompt.metadata),
    }


def _arrays(rollout: RolloutGenerated) -> dict[str, npt.NDArray[Any]]:
    """The arrays of all turns, one after the other."""
    kinds = {"prompt_token_ids": INT32, "token_ids": INT32, "behavior_logprobs": FLOAT32}
    return {
        name: np.concatenate([np.zeros(0, kind), *(getattr(turn, name) for turn in rollout.turns)])
        for name, kind in kinds.items()
    }


def _turns(rollout: RolloutGenerated) -> str:
    return _json(
        [
            turn.model_dump(mode="json", exclude=set(_ARRAYS))
            | {"num_prompt_tokens": len(turn.prompt_token_ids), "num_tokens": len(turn.token_ids)}
            for turn in rollout.turns
        ]
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
