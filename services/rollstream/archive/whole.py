"""Archived rollouts as the records that they were on `scored`, with their tokens."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from rollstream.archive.archive import Archive
from rollstream.archive.tables import ROLLOUTS
from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.scored import RolloutScored

_BATCH_ROWS: Final = 64
_OF_PROMPT: Final = ("prompt_id", "group_id", "environment", REFERENCE, "group_size", "submitted_at", "purpose")
_OF_ROLLOUT: Final = (
    "rollout_id", "attempt_id", "sample_index", "group_id", "group_size", "started_at", "finished_at"
)  # fmt: skip
_OF_SCORING: Final = ("reward", "scorer", "scorer_version", "scored_at", "status")


def whole_records(archive: Archive) -> Iterator[RolloutScored]:
    """Every record, those of a partition in their order. Memory: one file of the archive.

    Raises `ConfigurationError` if a file is damaged.
    """
    for file in archive.row_files(ROLLOUTS):
        for batch in archive.table(file).to_batches(_BATCH_ROWS):
            yield from map(scored_of, batch.to_pylist())


def scored_of(row: dict[str, Any]) -> RolloutScored:
    """The record whose row this is, see `records.sample_row`."""
    details = json.loads(row["details"])
    failure = {"code": row["failure_code"], "message": row["failure_message"]} if row["failure_code"] else None
    prompt = {
        **details.pop("prompt"),
        **{name: row[name] for name in _OF_PROMPT},
        "messages": json.loads(row["messages"]),
        "metadata": json.loads(row["metadata"]),
    }
    rollout = {
        **details.pop("rollout"),
        **{name: row[name] for name in _OF_ROLLOUT},
        "prompt": prompt,
        "turns": list(_turns(row)),
        "status": row["rollout_status"],
    }
    scoring = {
        **details.pop("scoring"),
        **{name: row[name] for name in _OF_SCORING},
        "components": dict(row["components"]),
        "failure": failure,
    }
    whole = json.dumps({**details, "rollout": rollout, "scoring": scoring}, default=datetime.isoformat)
    return RolloutScored.model_validate_json(whole)


def _turns(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The turns with their parts of the arrays."""
    asked = sampled = 0
    for turn in json.loads(row["turns"]):
        num_asked, num_sampled = turn.pop("num_prompt_tokens"), turn.pop("num_tokens")
        yield {
            **turn,
            "prompt_token_ids": row["prompt_token_ids"][asked : asked + num_asked],
            "token_ids": row["token_ids"][sampled : sampled + num_sampled],
            "behavior_logprobs": row["behavior_logprobs"][sampled : sampled + num_sampled],
        }
        asked, sampled = asked + num_asked, sampled + num_sampled
