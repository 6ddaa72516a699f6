"""The tables of an archive: their columns, and the names of their files.

| table | one row for each | from |
|---|---|---|
| `rollouts` | record | `scored` |
| `prompts` | record | `prompts` |
| `steps` | entry | `ledger` |
| `groups` | group that an entry closes | `ledger` |
| `passed_over` | entry that contradicts others, or counts again after a repair; as of an offset | `ledger` |
| `unreadable` | record that can't be decoded | all three |

A row is written once, as its record was read. What changes later, such as whether an entry survives, is derived by
whoever reads (`views.sql`, `reading.py`).
"""

import re
from typing import Final, NamedTuple, Self

import pyarrow as pa

from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.topics import LEDGER, SCORED
from rollstream.schemas.topics import PROMPTS as PROMPTS_TOPIC

ROLLOUTS: Final = "rollouts"
GROUPS: Final = "groups"
STEPS: Final = "steps"
PROMPTS: Final = "prompts"
PASSED_OVER: Final = "passed_over"
UNREADABLE: Final = "unreadable"

MAIN: Final = {LEDGER.name: STEPS, PROMPTS_TOPIC.name: PROMPTS, SCORED.name: ROLLOUTS}
"""Topic -> the table whose files say how far it is archived."""

Columns = list[tuple[str, pa.DataType]]


def _of(kind: pa.DataType, *names: str) -> Columns:
    return [(name, kind) for name in names]


_WHOLE: Final = pa.int64()
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_NUMBERS: Final = pa.map_(pa.string(), pa.float64())
_TOKENS: Final = pa.list_(pa.int32())
_PLACE: Final = [*_of(_WHOLE, "partition", "offset"), ("appended_at", _TIME)]
_TRAINED: Final = pa.struct([*_of(_TEXT, "rollout_id", "attempt_id"), *_of(_WHOLE, "partition", "offset")])
_SKIPPED: Final = pa.struct([("topic", _TEXT), *_of(_WHOLE, "partition", "offset"), ("reason", _TEXT)])

SCHEMAS: Final = {
    ROLLOUTS: pa.schema(
        [
            *_PLACE,
            *_of(_TEXT, "group_id", "rollout_id", "attempt_id"),
            *_of(_WHOLE, "sample_index", "group_size"),
            *_of(_TEXT, "prompt_id", "environment", "purpose"),
            *_of(_TEXT, "messages", REFERENCE, "metadata"),  # messages and metadata as JSON
            *_of(_TEXT, "completion", "finish_reason"),  # of the last turn
            *_of(_WHOLE, "num_turns", "num_completion_tokens"),
            *_of(_TOKENS, "prompt_token_ids", "token_ids"),  # of all turns in a row; `turns` says how many of each
            ("behavior_logprobs", pa.list_(pa.float32())),
            ("weight_versions", pa.list_(_WHOLE)),
            *_of(_TEXT, "rollout_status", "turns"),  # turns: JSON, all of each but its arrays
            *_of(_TEXT, "status", "failure_code", "failure_message"),  # of the scoring
            ("reward", pa.float64()),
            ("components", _NUMBERS),
            *_of(_TEXT, "scorer", "scorer_version"),
            *_of(_TIME, "submitted_at", "started_at", "finished_at", "scored_at"),
            ("details", _TEXT),  # JSON: every field of the record that has no column
        ]
    ),
    GROUPS: pa.schema(
        [
            ("ledger_offset", _WHOLE),
            ("appended_at", _TIME),
            *_of(_TEXT, "group_id", "outcome", "reason"),  # trained or dropped, and why it was dropped
            ("reward_mean", pa.float64()),  # over its completed samples
            *_of(_WHOLE, "closed_in_step", "trained_step"),
            ("trained", pa.list_(_TRAINED)),  # the records that the step used
        ]
    ),
    STEPS: pa.schema(
        [
            ("ledger_offset", _WHOLE),
            ("appended_at", _TIME),
            *_of(_TEXT, "kind", "incarnation"),
            *_of(_WHOLE, "step", "weight_version", "parent_version"),
            ("checkpoint", _TEXT),
            *_of(_WHOLE, "num_trained", "num_closed"),
            ("skipped", pa.list_(_SKIPPED)),
            ("metrics", _NUMBERS),
            *_of(_TIME, "started_at", "finished_at"),
            ("details", _TEXT),
        ]
    ),
    PROMPTS: pa.schema(
        [
            *_PLACE,
            *_of(_TEXT, "prompt_id", "group_id", "purpose", "environment", "messages", REFERENCE),
            ("group_size", _WHOLE),
            ("metadata", _TEXT),
            ("submitted_at", _TIME),
            ("details", _TEXT),
        ]
    ),
    PASSED_OVER: pa.schema([*_of(_WHOLE, "known_at", "ledger_offset"), ("counts", pa.bool_())]),
    UNREADABLE: pa.schema([*_PLACE, ("topic", _TEXT), ("num_bytes", _WHOLE), ("why", _TEXT)]),
}

KEYS: Final = {
    ROLLOUTS: "offset", PROMPTS: "offset", STEPS: "ledger_offset", GROUPS: "ledger_offset", PASSED_OVER: "known_at",
    UNREADABLE: "offset",
}  # fmt: skip
"""Table -> the column with the offset of the record that a row is from."""
SPARSE: Final = (PASSED_OVER, UNREADABLE)
"""Tables that get a file only where there are rows."""
_FILE: Final = re.compile(
    rf"({'|'.join(SCHEMAS)})/({'|'.join(MAIN)})-(\d{{5,10}})-(\d{{19}})-(\d{{19}})\.parquet", re.ASCII
)


class RowFile(NamedTuple):
    """A file of rows: what is archived of a partition from offset `first` up to, not including, `end`."""

    table: str
    topic: str
    partition: int
    first: int
    end: int

    @property
    def name(self) -> str:
        """Relative to the archive. Sorted by name, the files of a partition are in order."""
        return f"{self.table}/{self.topic}-{self.partition:05d}-{self.first:019d}-{self.end:019d}.parquet"

    @classmethod
    def of(cls, name: str) -> Self | None:
        """The file of this name; None if it is none of ours."""
        found = _FILE.fullmatch(name)
        return None if found is None else cls(found[1], found[2], *(int(found[n]) for n in (3, 4, 5)))


def empty_file(table: str) -> str:
    """Name of a file without rows, so that programs find the columns of a table that has no other file."""
    return f"{table}/empty.parquet"
