"""What a record holds is bounded: beyond a bound it can't be read, or a prompt is answered by failed samples."""

from typing import Any

import numpy as np
import pytest

from rollstream.schemas.bounds import MAX_GROUP_SIZE, MAX_ID_CHARACTERS, MAX_ITEMS, MAX_NAME_CHARACTERS, MAX_REWARD
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError, EncodeError, RecordTooLargeError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling, out_of_bounds
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import Status
from rollstream.schemas.topics import (
    EVAL_PROMPTS,
    LEDGER,
    MAX_PROMPT_BYTES,
    MAX_ROLLOUT_BYTES,
    PRODUCERS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)
from tests.harness.builders import (
    a_failure,
    a_generated,
    a_progress,
    a_prompt,
    a_rollout,
    a_turn,
    an_entry,
    applied,
    published,
)
from tests.harness.wire_bytes import avro_bytes, wire_of

BEYOND = 2**53 + 1
LONG_ID = "x" * (MAX_ID_CHARACTERS + 1)
LONG_NAME = "x" * (MAX_NAME_CHARACTERS + 1)
MANY = {str(number): "" for number in range(MAX_ITEMS + 1)}
EMPTY_MESSAGE = {"role": "", "content": "", "tool_calls": [], "tool_call_id": None}


def changed(record: Record, path: str, value: Any) -> dict[str, Any]:
    """The record's plain form with another value at `path`, e.g. `rollout.turns.0.text`."""
    plain = record.to_avro()
    *above, last = path.split(".")
    node: Any = plain
    for step in above:
        if isinstance(node, dict) and isinstance(node[step], tuple):
            node[step] = list(node[step])
        node = node[int(step)] if isinstance(node, list) else node[step]
    node[last] = value
    return plain


LARGEST = 2**63 - 1
FULL_LOGPROBS = {value: np.full(6, value, np.float32).tobytes() for value in (0.5, -1e30, -np.inf)}
# Topic, record, place, value, and the bound that is said.
BEYOND_BOUNDS: list[tuple[Topic[Any], Record, str, Any, str]] = [
    *(
        (PROMPTS, a_prompt(), path, value, bound)
        for path, value, bound in (
            ("prompt_id", LONG_NAME, "1024 characters"),
            ("prompt_id", "a\0b", r"pattern.*got 'a\\x00b'"),
            ("group_id", LONG_ID, "128 characters"),
            ("group_id", "", "at least 1 character"),
            ("group_id", "\x1b[31mred", "pattern"),
            ("environment", LONG_NAME, "1024 characters"),
            ("agent.name", LONG_NAME, "1024 characters"),
            ("agent.options", MANY, "4096 items"),
            ("producer", "a\nb", "pattern"),
            ("messages", [EMPTY_MESSAGE] * (MAX_ITEMS + 1), "4096 items"),
            ("tools", ["{}"] * (MAX_ITEMS + 1), "4096 items"),
            ("metadata", MANY, "4096 items"),
            ("sampling.stop", ["."] * (MAX_ITEMS + 1), "4096 items"),
            ("sampling.temperature", float("nan"), "finite"),
            ("sequence", BEYOND, "9007199254740992, got 9007199254740993"),
            ("weight_version", LARGEST, "9007199254740992"),
            ("source.row", -1, "greater than or equal to 0, got -1"),
            ("source.epoch", LARGEST, "9007199254740992"),
        )
    ),
    *(
        (ROLLOUTS, a_generated(), path, value, bound)
        for path, value, bound in (
            ("rollout_id", LONG_NAME, "1024 characters"),
            ("attempt_id", LONG_ID, "128 characters"),
            ("group_id", LONG_ID, "128 characters"),
            ("sample_index", -1, "0, got -1"),
            ("turns", [a_turn().to_avro()] * (MAX_ITEMS + 1), "4096 items"),
            ("turns.0.prefix_turn", -1, "0, got -1"),
            ("turns.0.prefix_tokens", LARGEST, "9007199254740992"),
            ("turns.0.latency_seconds", 1e300, "1000000000"),
            ("turns.0.latency_seconds", float("nan"), "finite"),
            ("turns.0.behavior_logprobs", FULL_LOGPROBS[0.5], r"in \[-1000, 0\], got 0.5 to 0.5"),
            ("turns.0.behavior_logprobs", FULL_LOGPROBS[-1e30], r"in \[-1000, 0\]"),
            ("turns.0.behavior_logprobs", FULL_LOGPROBS[-np.inf], "finite"),
            ("turns.0.behavior_logprobs", np.array([-1] * 5 + [np.nan], np.float32).tobytes(), "finite"),
            ("turns.0.weight_spans", [{"weight_version": LARGEST, "start": 0, "end": 6}], "9007199254740992"),
            ("generator.host", "a\0b", "pattern"),
        )
    ),
    (SCORED, a_rollout(1.0), "scoring.reward", 1.1e9, ""),
    (SCORED, a_rollout(1.0), "scoring.reward", -1e308, ""),
    (SCORED, a_rollout(1.0), "scoring.components", {"exact_match": 1e308}, ""),
    (SCORED, a_rollout(1.0), "scoring.scorer", LONG_NAME, ""),
    (WEIGHTS, published(), "weight_version", LARGEST, ""),
    (WEIGHTS, published(), "parent_version", -1, ""),
    (WEIGHTS, published(), "step", LARGEST, ""),
    (WEIGHTS, published(), "files", [{"name": "model\0", "num_bytes": 1, "sha256": ""}], ""),
    (WEIGHTS_APPLIED, applied(), "stall_seconds", float("nan"), ""),
    (WEIGHTS_APPLIED, applied(), "load_seconds", 1e10, ""),
    (PRODUCERS, a_progress(), "incarnation", LARGEST, ""),
    (PRODUCERS, a_progress(), "open_groups", [LONG_ID], ""),
    (PRODUCERS, a_progress(), "prompts_offsets", {"0": BEYOND}, ""),
    (LEDGER, an_entry(), "weight_version", LARGEST, ""),
    (LEDGER, an_entry(), "step", BEYOND, ""),
    (LEDGER, an_entry(), "closed", [{"group_id": LONG_ID, "outcome": "dropped", "reason": ""}], ""),
]


@pytest.mark.parametrize(("topic", "record", "path", "value", "bound"), BEYOND_BOUNDS)
def test_a_record_beyond_a_bound_cannot_be_read_and_the_bound_is_said(
    topic: Topic[Any], record: Record, path: str, value: Any, bound: str
) -> None:
    with pytest.raises(DecodeError, match=f"{path}.*{bound}"):
        AvroCodec(topic).decode(wire_of(topic, changed(record, path, value)))


@pytest.mark.parametrize("reward", [MAX_REWARD, -MAX_REWARD, 0.0])
def test_a_reward_at_its_bound_is_read(reward: float) -> None:
    codec = AvroCodec(SCORED)
    assert codec.decode(codec.encode(a_rollout(reward))).scoring.reward == reward


def test_the_logprobs_of_an_engine_that_rounds_are_read() -> None:
    rounded = a_turn(behavior_logprobs=np.array([1e-6, 0, -104, -1, -1, -1], np.float32))
    codec = AvroCodec(ROLLOUTS)
    assert codec.decode(codec.encode(a_generated(turns=(rounded,)))).turns[0] == rounded


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNRESOLVED])
def test_only_a_completed_rollout_can_be_scored(status: Status) -> None:
    plain = a_rollout(1.0).to_avro() | {"rollout": a_generated(status=status).to_avro()}
    with pytest.raises(DecodeError, match=f"scoring is 'completed' and the rollout '{status.value}'"):
        AvroCodec(SCORED).decode(wire_of(SCORED, plain))


def test_a_status_that_a_newer_version_added_may_go_with_any_failure() -> None:
    plain = a_rollout(status=Status.FAILED).to_avro()
    plain["rollout"]["status"] = "UNKNOWN"
    assert AvroCodec(SCORED).decode(wire_of(SCORED, plain)).rollout.status is Status.UNKNOWN


def test_millions_of_empty_messages_are_refused_before_they_take_memory() -> None:
    prompt = a_prompt(messages=(Message(role="", content=""),))
    one = wire_of(PROMPTS, prompt.to_avro())
    start = one.index(b"\2\0\0\0\0\0")  # one message of four bytes, and the end of the list
    count = avro_bytes("long", 1_500_000)
    value = one[:start] + count + b"\0\0\0\0" * 1_500_000 + one[start + 5 :]
    assert len(value) < MAX_PROMPT_BYTES
    with pytest.raises(DecodeError, match=f"more than 1048576 values in {len(value)} bytes"):
        AvroCodec(PROMPTS).decode(value)


def test_what_is_longer_than_any_record_is_refused_unread() -> None:
    with pytest.raises(DecodeError, match="20000000 bytes, the limit is 6225920: split the prompt"):
        AvroCodec(PROMPTS).decode(bytes(20_000_000))


def sized(topic: Topic[PromptSubmitted], num_bytes: int) -> PromptSubmitted:
    """A prompt of so many encoded bytes."""
    base = a_prompt(metadata={"filling": "x" * 2_000_000})
    more = num_bytes - len(AvroCodec(topic).encode(base))
    return a_prompt(metadata={"filling": "x" * (2_000_000 + more)})


def test_the_largest_prompt_fits_into_a_failed_sample_and_the_largest_rollout_into_its_scoring() -> None:
    largest = sized(EVAL_PROMPTS, MAX_PROMPT_BYTES)
    assert AvroCodec(PROMPTS).decode(AvroCodec(PROMPTS).encode(largest)) == largest
    with pytest.raises(
        RecordTooLargeError, match=f"is {MAX_PROMPT_BYTES + 1} bytes, the limit is {MAX_PROMPT_BYTES}: lower"
    ):
        AvroCodec(PROMPTS).encode(
            largest.model_copy(update={"metadata": {"filling": largest.metadata["filling"] + "x"}})
        )
    failed = a_generated(prompt=largest, status=Status.FAILED, failure=a_failure("\U0001f600" * 2000))
    AvroCodec(ROLLOUTS).encode(failed)

    grown = a_prompt(metadata={"filling": "x" * MAX_ROLLOUT_BYTES})
    spare = MAX_ROLLOUT_BYTES - len(wire_of(ROLLOUTS, a_generated(prompt=grown, status=Status.FAILED).to_avro()))
    grown = a_prompt(metadata={"filling": "x" * (MAX_ROLLOUT_BYTES + spare)})
    record = a_rollout(status=Status.FAILED, prompt=grown, failure=a_failure("\U0001f600" * 2000))
    with pytest.raises(RecordTooLargeError):
        AvroCodec(ROLLOUTS).encode(record.rollout)
    AvroCodec(SCORED).encode(record)


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"group_size": 10**6}, FailureCode.BAD_PROMPT, "group_size 1000000 is above 1024"),
        ({"group_size": 10**12}, FailureCode.BAD_PROMPT, "group_size 1000000000000 is above 1024"),
        (
            {"group_size": 1024, "reference_answer": "x" * 2**18},
            FailureCode.BAD_PROMPT,
            r"bytes of the prompt, which each sample carries, is above 268435456 bytes: lower group_size to 1021",
        ),
        ({"sampling": Sampling(max_tokens=2**62)}, FailureCode.BAD_PROMPT, "is above 1048576"),
        ({"sampling": Sampling(temperature=1e-300)}, FailureCode.UNSUPPORTED_SAMPLING, "1e-300 is neither 0 nor in"),
        ({"sampling": Sampling(temperature=1e308)}, FailureCode.UNSUPPORTED_SAMPLING, r"nor in [0.01, 100]"),
    ],
)
def test_a_prompt_with_a_number_out_of_bounds_can_be_read_and_says_why_it_never_runs(
    fields: dict[str, Any], code: FailureCode, said: str
) -> None:
    prompt = AvroCodec(PROMPTS).decode(wire_of(PROMPTS, a_prompt(**fields).to_avro()))
    refused = out_of_bounds(prompt)
    assert refused is not None
    assert refused.code is code
    assert said in refused.message


@pytest.mark.parametrize(
    "fields",
    [
        {"group_size": MAX_GROUP_SIZE},
        {"group_size": MAX_GROUP_SIZE, "reference_answer": "x" * (2**18 - 2000)},
        {"group_size": 32, "reference_answer": "x" * 6_000_000},
        {"sampling": Sampling(max_tokens=2**20)},
        {"sampling": Sampling(temperature=0.0)},
        {"sampling": Sampling(temperature=0.01)},
    ],
)
def test_a_prompt_at_its_bounds_runs(fields: dict[str, Any]) -> None:
    assert out_of_bounds(a_prompt(**fields)) is None


def test_a_text_of_an_engine_that_utf_8_cannot_hold_is_written_with_a_replacement() -> None:
    codec = AvroCodec(ROLLOUTS)
    sample = a_generated(turns=(a_turn(text="lone \udc80 surrogate"),))
    assert codec.decode(codec.encode(sample)).turns[0].text == "lone ? surrogate"


def test_a_prompt_that_utf_8_cannot_hold_is_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="UTF-8 can't encode"):
        AvroCodec(PROMPTS).encode(a_prompt(metadata={"text": "\ud800"}))
