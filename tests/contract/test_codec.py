"""The codec: what it takes comes back; what it can't read, or a model would not hold, is refused with the reason."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollstream.schemas.codec import AvroCodec, schema_id_of
from rollstream.schemas.errors import DecodeError, EncodeError
from rollstream.schemas.failure import Failure
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, TrainedRollout
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.prompt import Message, PromptSubmitted, Purpose, Sampling, ToolCall
from rollstream.schemas.record import Record
from rollstream.schemas.registry import PackagedRegistry
from rollstream.schemas.rollout import FinishReason, Status, Turn, WeightSpan
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, ROLLOUTS, SCORED, WEIGHTS, WEIGHTS_APPLIED, Topic
from rollstream.schemas.weights import ApplyOutcome, WeightFile, WeightsApplied, WeightsKind, WeightsPublished
from tests.harness.builders import (
    a_failure,
    a_generated,
    a_progress,
    a_prompt,
    a_rollout,
    a_scoring,
    a_turn,
    an_entry,
    applied,
    published,
)
from tests.harness.wire_bytes import wire_of

TEXT = st.text(max_size=20)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
IDS = NAMES.filter(bool)
COUNTS = st.integers(0, 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
REWARDS = st.floats(-1e9, 1e9)
TIMES = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
EXAMPLES: list[tuple[Topic[Any], Record]] = [
    (PROMPTS, a_prompt()),
    (PRODUCERS, a_progress()),
    (ROLLOUTS, a_generated()),
    (SCORED, a_rollout()),
    (WEIGHTS, published()),
    (WEIGHTS_APPLIED, applied()),
    (LEDGER, an_entry()),
]
TOPIC_IDS = [topic.name for topic, _ in EXAMPLES]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """Turns with any tokens, cut into any spans."""
    token_ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=12))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(token_ids) - 1)), max_size=3))) if len(token_ids) > 1 else []
    ends = [*cuts, len(token_ids)] if token_ids else []
    spans = [(draw(COUNTS), start, end) for start, end in zip([0, *ends], ends, strict=False)]
    logprobs = draw(st.lists(st.floats(-80, 0, width=32), min_size=len(token_ids), max_size=len(token_ids)))
    return Turn(
        prefix_turn=draw(st.none() | COUNTS),
        prompt_token_ids=np.array(draw(st.lists(st.integers(0, 2**31 - 1), max_size=5)), dtype=np.int32),
        token_ids=np.array(token_ids, dtype=np.int32),
        behavior_logprobs=np.array(logprobs, dtype=np.float32),
        weight_spans=tuple(WeightSpan(weight_version=v, start=start, end=end) for v, start, end in spans),
        finish_reason=draw(st.sampled_from(FinishReason)),
        text=draw(TEXT),
        latency_seconds=draw(st.floats(0, 1e6)),
    )


MESSAGES = st.builds(
    Message,
    role=TEXT,
    content=TEXT,
    tool_calls=st.lists(st.builds(ToolCall, call_id=TEXT, name=TEXT, arguments=TEXT), max_size=2).map(tuple),
    tool_call_id=st.none() | TEXT,
)
PROMPT_RECORDS = st.builds(
    PromptSubmitted,
    prompt_id=IDS,
    group_id=IDS,
    purpose=st.sampled_from(Purpose),
    weight_version=st.none() | COUNTS,
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    tools=st.lists(TEXT, max_size=2).map(tuple),
    reference_answer=st.none() | TEXT,
    sampling=st.builds(Sampling, temperature=st.floats(0, 10), seed=st.none() | st.integers(-(2**63), 2**63 - 1)),
    group_size=st.integers(1, 2**40),
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    sequence=COUNTS,
    submitted_at=TIMES,
)
RECORDS_OF_ALL_KINDS = st.one_of(
    PROMPT_RECORDS.map(lambda record: (PROMPTS, record)),
    st.builds(
        ProducerProgress,
        producer=IDS,
        incarnation=COUNTS,
        source=NAMES,
        claimed_at=TIMES,
        mark=NAMES,
        next_sequence=COUNTS,
        open_groups=st.lists(IDS, max_size=3).map(tuple),
        ledger_offset=COUNTS,
        prompts_offsets=st.dictionaries(TEXT, COUNTS, max_size=3),
        written_at=TIMES,
    ).map(lambda record: (PRODUCERS, record)),
    st.builds(a_generated, turns=st.lists(turns(), max_size=3).map(tuple), prompt=st.just(a_prompt())).map(
        lambda record: (ROLLOUTS, record)
    ),
    st.builds(
        a_rollout,
        turns=st.lists(turns(), max_size=2).map(tuple),
        scoring=st.builds(
            a_scoring,
            reward=st.none() | REWARDS,
            components=st.dictionaries(TEXT, REWARDS, max_size=3),
            scored_at=TIMES,
        ),
    ).map(lambda record: (SCORED, record)),
    st.builds(
        WeightsPublished,
        model=NAMES,
        weight_version=COUNTS,
        parent_version=st.none() | COUNTS,
        kind=st.sampled_from(WeightsKind),
        uri=TEXT,
        files=st.lists(st.builds(WeightFile, name=NAMES, num_bytes=COUNTS, sha256=NAMES), max_size=3).map(tuple),
        step=COUNTS,
        created_at=TIMES,
    ).map(lambda record: (WEIGHTS, record)),
    st.builds(
        WeightsApplied,
        generator_id=NAMES,
        weight_version=COUNTS,
        outcome=st.sampled_from(ApplyOutcome),
        stall_seconds=st.floats(0, 1e6),
        error=st.none() | TEXT,
        applied_at=TIMES,
    ).map(lambda record: (WEIGHTS_APPLIED, record)),
    st.builds(
        LedgerEntry,
        kind=st.sampled_from(EntryKind),
        incarnation=NAMES,
        step=COUNTS,
        weight_version=COUNTS,
        parent_version=st.none() | COUNTS,
        checkpoint=st.none() | TEXT,
        trained=st.lists(
            st.builds(TrainedRollout, rollout_id=NAMES, attempt_id=IDS, partition=COUNTS, offset=COUNTS), max_size=3
        ).map(tuple),
        closed=st.lists(
            st.builds(ClosedGroup, group_id=IDS, outcome=st.sampled_from(GroupOutcome), reason=NAMES), max_size=3
        ).map(tuple),
        metrics=st.dictionaries(TEXT, FLOATS, max_size=4),
        started_at=TIMES,
        finished_at=TIMES,
    ).map(lambda record: (LEDGER, record)),
)


@given(RECORDS_OF_ALL_KINDS)
def test_every_record_comes_back_as_it_was(example: tuple[Topic[Any], Record]) -> None:
    topic, record = example
    codec = AvroCodec(topic)
    decoded = codec.decode(codec.encode(record))
    assert decoded == record
    assert type(decoded) is type(record)
    for turn in getattr(decoded, "turns", ()):
        assert (turn.token_ids.dtype, turn.behavior_logprobs.dtype) == (np.dtype("<i4"), np.dtype("<f4"))


@given(st.sampled_from(EXAMPLES), st.binary(max_size=300), st.integers(0, 8))
def test_any_bytes_are_a_record_or_a_decode_error(
    example: tuple[Topic[Any], Record], body: bytes, schema_id: int
) -> None:
    _decode_or_refuse(example[0], b"\0" + schema_id.to_bytes(4, "big") + body)
    _decode_or_refuse(example[0], body)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_record_with_some_bytes_overwritten_is_a_record_or_a_decode_error(
    example: tuple[Topic[Any], Record], data: st.DataObject
) -> None:
    topic, record = example
    damaged = bytearray(AvroCodec(topic).encode(record))
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _decode_or_refuse(topic, bytes(damaged))


@pytest.mark.parametrize(("topic", "record"), EXAMPLES, ids=TOPIC_IDS)
def test_every_truncation_is_refused(topic: Topic[Any], record: Record) -> None:
    codec = AvroCodec(topic)
    value = codec.encode(record)
    for length in range(len(value)):
        with pytest.raises(DecodeError):
            codec.decode(value[:length])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null value"),
        (b"", "wire format"),
        (b"\x00\x00\x00", "wire format"),
        (b"garbage that is no record", "wire format"),
        (b"\x01" + AvroCodec(PROMPTS).encode(a_prompt())[1:], "wire format"),
        (b"\x00\x7f\xff\xff\xff" + AvroCodec(PROMPTS).encode(a_prompt())[5:], "schema id 2147483647"),
        (AvroCodec(PROMPTS).encode(a_prompt()) + b"\x00", "1 bytes follow"),
        (AvroCodec(LEDGER).encode(an_entry()), "does not fit"),
        (b"\0\0\0\0\x01" + b"\x80" * 8 + b"\x01x", "."),
    ],
    ids=["null", "empty", "short", "garbage", "magic", "unknown id", "trailing", "another record", "long length"],
)
def test_broken_bytes_are_refused_with_the_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as raised:
        AvroCodec(PROMPTS).decode(value)
    assert len(str(raised.value)) < 300, "it goes into a log line and a header for each such record"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"group_size": 0}, "group_size"),
        ({"prompt_id": ""}, "prompt_id"),
        ({"submitted_at": 2**62}, "Overflow|submitted_at"),
    ],
)
def test_bytes_that_fit_the_schema_but_not_the_model_are_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(DecodeError, match=where):
        AvroCodec(PROMPTS).decode(wire_of(PROMPTS, {**a_prompt().to_avro(), **changes}))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"token_ids": b"\x01\x00\x00\x00\x02"}, "whole number of 4-byte"),
        ({"token_ids": np.array([-1] * 6, dtype="<i4").tobytes()}, "negative"),
        ({"token_ids": b""}, "0 token ids but 6 logprobs"),
        ({"behavior_logprobs": np.array([np.nan] * 6, dtype="<f4").tobytes()}, "finite"),
        ({"weight_spans": ()}, "spans cover 0 of 6"),
        ({"weight_spans": ({"weight_version": 1, "start": 1, "end": 6},)}, "does not continue at token 0"),
    ],
)
def test_turns_whose_parts_disagree_are_refused(changes: dict[str, Any], where: str) -> None:
    plain = a_generated().to_avro()
    plain["turns"] = ({**plain["turns"][0], **changes},)
    with pytest.raises(DecodeError, match=where):
        AvroCodec(ROLLOUTS).decode(wire_of(ROLLOUTS, plain))


@pytest.mark.parametrize("seed", [2**63, 10**400])
def test_a_seed_beyond_64_bits_is_an_encode_error(seed: int) -> None:
    with pytest.raises(EncodeError, match="64 bits") as refused:
        AvroCodec(PROMPTS).encode(a_prompt(sampling=Sampling(seed=seed)))
    assert len(str(refused.value)) < 500


def test_a_whole_number_beyond_64_bits_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="64 bits"):
        AvroCodec(PROMPTS).encode(a_prompt(group_size=2**70))


@pytest.mark.parametrize("value", [1.7, True, "1", None])
def test_only_whole_numbers_are_taken_for_whole_numbers(value: object) -> None:
    with pytest.raises(ValidationError):
        a_prompt(group_size=value)
    with pytest.raises(ValidationError):
        an_entry(step=value)
    with pytest.raises(ValidationError):
        WeightSpan(weight_version=value, start=0, end=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("token_ids", [[1.7], [True], np.array([2**31]), np.array([[1]]), ["a"], np.array([0.5])])
def test_only_whole_numbers_below_2_to_the_31_are_token_ids(token_ids: object) -> None:
    with pytest.raises(ValidationError):
        a_turn(spans=((1, 0, 6),), prompt_token_ids=token_ids)


@pytest.mark.parametrize(
    "builder", [a_prompt, a_progress, a_turn, a_generated, a_scoring, an_entry, published, applied]
)
def test_unknown_fields_are_refused(builder: Any) -> None:
    with pytest.raises(ValidationError, match="reword"):
        builder(reword=1.0)


def test_records_are_frozen_and_their_times_have_a_zone() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        a_prompt().group_size = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="UTC"):
        a_prompt(submitted_at=datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("reward", "status"), [(None, Status.COMPLETED), (0.0, Status.FAILED), (1.0, Status.UNRESOLVED)]
)
def test_a_reward_belongs_to_completed_scoring_and_to_nothing_else(reward: float | None, status: Status) -> None:
    with pytest.raises(ValidationError, match="only completed has one"):
        a_scoring(reward=reward, status=status)


@pytest.mark.parametrize(
    ("status", "failure"), [(Status.COMPLETED, a_failure("why")), (Status.FAILED, None), (Status.UNRESOLVED, None)]
)
def test_a_failure_belongs_to_all_but_what_completed(status: Status, failure: Failure | None) -> None:
    with pytest.raises(ValidationError, match="all but completed have one"):
        a_generated(status=status, failure=failure)
    with pytest.raises(ValidationError, match="all but completed have one"):
        a_scoring(reward=1.0 if status is Status.COMPLETED else None, status=status, failure=failure)


def test_the_header_names_the_schema() -> None:
    for topic, record in EXAMPLES:
        assert schema_id_of(AvroCodec(topic).encode(record)) == PackagedRegistry().id_of(topic)


def _decode_or_refuse(topic: Topic[Any], value: bytes) -> None:
    try:
        AvroCodec(topic).decode(value)
    except DecodeError:
        return
