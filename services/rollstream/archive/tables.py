"""The tables of an archive: their columns, and the directories that their rows go to.

| table | one row for each | directories |
|---|---|---|
| `rollouts` | readable record of `scored`, with the fate of its group | day, step that trained the group or `none` |
| `groups` | group that a ledger entry closes | day |
| `steps` | readable entry of `ledger` | day |
| `prompts` | readable record of `prompts` | day |
| `unreadable` | record of these topics that can't be decoded | day |

Only `rollouts` is divided by step: a step's share of the others is a few kB, and would be a file of its own.

Days are those of the broker's append time, in UTC. Names of directories are made of these times and of numbers alone,
never of texts in records.
"""

import re
from typing import Final

import pyarrow as pa

from rollstream.rows.conversation import REFERENCE

ROLLOUTS: Final = "rollouts"
GROUPS: Final = "groups"
STEPS: Final = "steps"
PROMPTS: Final = "prompts"
UNREADABLE: Final = "unreadable"

_TIME: Final = pa.timestamp("us", tz="UTC")
_NUMBERS: Final = pa.map_(pa.string(), pa.float64())
_PLACE: Final = [("partition", pa.int64()), ("offset", pa.int64()), ("appended_at", _TIME)]

FATE: Final = pa.schema(
    [
        ("outcome", pa.string()),  # of the group: trained, dropped or open
        ("reason", pa.string()),  # why it was dropped
        ("trained", pa.bool_()),  # whether the step used this very record
        ("trained_step", pa.int64()),  # null unless the group was trained on
        ("closed_in_step", pa.int64()),  # the step that was gathered when the group closed; null while it is open
        ("closed_by", pa.int64()),  # offset of the entry in `ledger`
    ]
)
SAMPLE: Final = pa.schema(
    [
        *_PLACE,
        ("group_id", pa.string()),
        ("rollout_id", pa.string()),
        ("attempt_id", pa.string()),
        ("sample_index", pa.int64()),
        ("group_size", pa.int64()),
        ("prompt_id", pa.string()),
        ("environment", pa.string()),
        ("purpose", pa.string()),
        ("messages", pa.string()),  # JSON
        (REFERENCE, pa.string()),
        ("metadata", pa.string()),  # JSON
        ("completion", pa.string()),  # text of the last turn
        ("finish_reason", pa.string()),  # of the last turn
        ("num_turns", pa.int64()),
        ("num_completion_tokens", pa.int64()),
        ("prompt_token_ids", pa.list_(pa.int32())),  # of all turns, one after the other; `turns` says how many of each
        ("token_ids", pa.list_(pa.int32())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("weight_versions", pa.list_(pa.int64())),
        ("rollout_status", pa.string()),
        ("turns", pa.string()),  # JSON: all of each turn but its arrays
        ("status", pa.string()),  # of the scoring
        ("failure_code", pa.string()),
        ("failure_message", pa.string()),
        ("reward", pa.float64()),
        ("components", _NUMBERS),
        ("scorer", pa.string()),
        ("scorer_version", pa.string()),
        ("submitted_at", _TIME),
        ("started_at", _TIME),
        ("finished_at", _TIME),
        ("scored_at", _TIME),
        ("details", pa.string()),  # JSON: every field of the record that has no column
    ]
)
_TRAINED: Final = pa.struct(
    [("rollout_id", pa.string()), ("attempt_id", pa.string()), ("partition", pa.int64()), ("offset", pa.int64())]
)
_SKIPPED: Final = pa.struct(
    [("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()), ("reason", pa.string())]
)

SCHEMAS: Final = {
    ROLLOUTS: pa.schema([*SAMPLE, *FATE]),
    GROUPS: pa.schema(
        [
            ("ledger_offset", pa.int64()),
            ("appended_at", _TIME),
            ("survives", pa.bool_()),
            ("group_id", pa.string()),
            ("outcome", pa.string()),
            ("reason", pa.string()),
            ("closed_in_step", pa.int64()),
            ("trained_step", pa.int64()),
            ("trained", pa.list_(_TRAINED)),
        ]
    ),
    STEPS: pa.schema(
        [
            ("ledger_offset", pa.int64()),
            ("appended_at", _TIME),
            ("survives", pa.bool_()),
            ("kind", pa.string()),
            ("incarnation", pa.string()),
            ("step", pa.int64()),
            ("weight_version", pa.int64()),
            ("parent_version", pa.int64()),
            ("checkpoint", pa.string()),
            ("num_trained", pa.int64()),
            ("num_closed", pa.int64()),
            ("skipped", pa.list_(_SKIPPED)),
            ("metrics", _NUMBERS),
            ("started_at", _TIME),
            ("finished_at", _TIME),
            ("details", pa.string()),
        ]
    ),
    PROMPTS: pa.schema(
        [
            *_PLACE,
            ("prompt_id", pa.string()),
            ("group_id", pa.string()),
            ("purpose", pa.string()),
            ("environment", pa.string()),
            ("messages", pa.string()),
            (REFERENCE, pa.string()),
            ("group_size", pa.int64()),
            ("metadata", pa.string()),
            ("submitted_at", _TIME),
            ("details", pa.string()),
        ]
    ),
    UNREADABLE: pa.schema([*_PLACE, ("topic", pa.string()), ("num_bytes", pa.int64()), ("why", pa.string())]),
}

FILE: Final = re.compile(
    rf"({'|'.join(SCHEMAS)})/day=\d{{4}}-\d\d-\d\d/(step=(none|\d{{6,16}})/)?part-\d{{8,16}}-g\d{{1,9}}\.parquet"
)
"""A file of an archive, relative to its directory."""


def step_directory(step: int | None) -> str:
    """Name of the directory of a step; sorted by name, the first million are in order."""
    return "step=none" if step is None else f"step={step:06d}"
