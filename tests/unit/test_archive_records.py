"""Records as rows of an archive: every field is there."""

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from rollstream.archive.records import entry_row, group_rows, prompt_row, sample_row, unreadable_row
from rollstream.archive.tables import SCHEMAS
from rollstream.bus.message import KafkaMessage
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated, Turn
from rollstream.schemas.scored import RolloutScored, Scoring
from tests.harness.builders import a_prompt, a_rollout, a_scoring, a_trained, a_turn, an_entry

APPENDED = datetime(2026, 11, 23, 10, 0, 0, 250_000, tzinfo=UTC)


def a_message(offset: int = 7, *, timestamp_ms: int | None = None, value: bytes | None = b"bytes") -> KafkaMessage:
    milliseconds = int(APPENDED.timestamp() * 1000) if timestamp_ms is None else timestamp_ms
    return KafkaMessage(
        topic="demo.scored", partition=1, offset=offset, key=b"g", value=value, timestamp_ms=milliseconds
    )  # fmt: skip


def test_a_sample_has_its_place_texts_tokens_and_reward_in_columns() -> None:
    row = sample_row(a_message(), a_rollout(0.5, 2))
    assert (row["partition"], row["offset"], row["appended_at"]) == (1, 7, APPENDED)
    assert (row["reward"], row["components"], row["status"]) == (0.5, [("exact_match", 0.5)], "completed")
    assert (row["completion"], row["finish_reason"], row["num_completion_tokens"]) == ("01259", "stop", 6)
    assert row["token_ids"].tolist() == [4, 5, 6, 9, 13, 1]
    assert row["behavior_logprobs"].tolist() == [-0.125, -0.25, -0.375, -0.5, -0.625, -0.75]
    assert (row["weight_versions"], row["sample_index"], row["group_size"]) == ([3], 2, 4)
    assert json.loads(row["messages"]) == [{"role": "user", "content": "52910="}]
    assert json.loads(row["metadata"]) == {"difficulty": "5"}
    table = pa.Table.from_pylist([row], schema=SCHEMAS["rollouts"])
    assert table["behavior_logprobs"].to_pylist() == [[-0.125, -0.25, -0.375, -0.5, -0.625, -0.75]]


def test_the_arrays_of_several_turns_follow_each_other_and_turns_say_how_many_each_has() -> None:
    turns = (a_turn((1, 2)), a_turn((3, 4, 5), prompt_token_ids=np.array([8], dtype=np.int32), text="last"))
    row = sample_row(a_message(), a_rollout(turns=turns))
    assert row["token_ids"].tolist() == [1, 2, 3, 4, 5]
    assert row["prompt_token_ids"].tolist() == [9, 6, 13, 5, 4, 14, 8]
    told = json.loads(row["turns"])
    assert [(turn["num_prompt_tokens"], turn["num_tokens"], turn["text"]) for turn in told] == [
        (6, 2, "01259"),
        (1, 3, "last"),
    ]
    assert (row["completion"], row["num_turns"]) == ("last", 2)


def test_a_sample_without_a_reward_has_its_failure_and_no_number() -> None:
    row = sample_row(a_message(), a_rollout(None))
    assert (row["reward"], row["components"]) == (None, [])
    assert (row["status"], row["rollout_status"]) == ("unresolved", "completed")
    assert (row["failure_code"], row["failure_message"]) == (FailureCode.CRASH.value, "verifier crashed")


def test_every_field_of_a_record_is_in_a_row() -> None:
    """A field that a record gets later comes to `details` or `turns` by itself; those with columns must be there."""
    row = sample_row(a_message(), a_rollout())
    details = json.loads(row["details"])
    [turn] = json.loads(row["turns"])
    renamed = {"failure": "failure_code", "prompt": "details", "turns": "turns"}
    for record, rest in (
        (PromptSubmitted, details["prompt"]),
        (RolloutGenerated, details["rollout"] | {"status": row["rollout_status"]}),
        (Scoring, details["scoring"]),
        (Turn, turn),
        (RolloutScored, details),
    ):
        for name in record.model_fields:
            assert name in rest or renamed.get(name, name) in row, f"{record.__name__}.{name}"
    assert details["rollout"]["generator"]["engine"] == "scripted"
    assert details["prompt"]["sampling"]["seed"] == 17
    prompt = a_prompt()
    asked = prompt_row(a_message(), prompt)
    assert set(PromptSubmitted.model_fields) <= asked.keys() | json.loads(asked["details"]).keys()
    entry = entry_row(a_message(), an_entry())
    told = entry.keys() | json.loads(entry["details"]).keys() | {"trained", "closed"}
    assert set(LedgerEntry.model_fields) <= told


def test_the_groups_of_an_entry_name_the_records_that_the_step_used() -> None:
    prompt, other = a_prompt(1), a_prompt(2)
    used = a_rollout(1.0, 3, prompt=prompt)
    closed = (
        ClosedGroup(group_id=prompt.group_id, outcome=GroupOutcome.TRAINED),
        ClosedGroup(group_id=other.group_id, outcome=GroupOutcome.DROPPED, reason="no_spread", reward_mean=1.0),
    )
    entry = an_entry(step=5, closed=closed, trained=(a_trained(used, partition=1, offset=40),))
    trained, dropped = group_rows(a_message(9), entry)
    assert (trained["ledger_offset"], trained["trained_step"], trained["closed_in_step"]) == (9, 5, 5)
    [named] = trained["trained"]
    assert (named["partition"], named["offset"], named["attempt_id"]) == (1, 40, "attempt-3")
    assert (dropped["outcome"], dropped["reason"], dropped["trained_step"]) == ("dropped", "no_spread", None)
    assert (trained["reward_mean"], dropped["reward_mean"]) == (None, 1.0)
    assert set(ClosedGroup.model_fields) <= trained.keys()
    drops = an_entry(EntryKind.DROPS, step=5, closed=closed[1:])
    [row] = group_rows(a_message(), drops)
    assert row["closed_in_step"] == 6, "drops between two steps belong to the step that is gathered"


def test_a_record_that_cannot_be_read_is_listed_with_its_reason() -> None:
    row = unreadable_row(a_message(3, value=None), DecodeError("null value"))
    assert (row["topic"], row["offset"], row["num_bytes"], row["why"]) == ("scored", 3, None, "null value")
    assert pa.Table.from_pylist([row], schema=SCHEMAS["unreadable"]).num_rows == 1


def test_times_beyond_what_a_date_holds_are_of_1970() -> None:
    rows = [sample_row(a_message(timestamp_ms=ms), a_rollout()) for ms in (-1, 2**62)]
    assert {row["appended_at"].year for row in rows} == {1970}


def test_texts_with_null_characters_and_no_text_at_all_are_kept() -> None:
    scoring = a_scoring(1.0, components={"a\u0000b": 0.25})
    row = sample_row(a_message(), a_rollout(turns=(a_turn(text="a\u0000b\ud83d\ude00"),), scoring=scoring))
    table = pa.Table.from_pylist([row], schema=SCHEMAS["rollouts"])
    assert table["completion"].to_pylist()[0].startswith("a\u0000b")
    assert table["components"].to_pylist() == [[("a\u0000b", 0.25)]]
