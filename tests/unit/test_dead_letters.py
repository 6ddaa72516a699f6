"""Dead letters keep the message unchanged and say why; the same message makes the same dead letter."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import MAX_MESSAGE_BYTES
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.topics import TOPIC_BYTES
from rollstream.stage.dead_letters import (
    KEPT_BYTES,
    REPLAYS,
    DeadLetter,
    LetterIdentity,
    Replay,
    dead_letter,
    distinct,
    fingerprint,
    marker,
    parse,
)
from rollstream.stage.replay import MAX_REPLAYS, READ_BY, doubt_of, replay_record, why_not_replayable

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MESSAGE = KafkaMessage(
    topic="demo.prompts",
    partition=3,
    offset=77,
    key=b"group-1",
    value=b"\0\0\0\0\5body",
    headers=(("traceparent", b"00-abc"),),
    timestamp_ms=1_770_000_000_123,
)


def a_letter(
    message: KafkaMessage = MESSAGE, *, failed_at: datetime = NOON, error: Exception | None = None
) -> OutRecord:
    return dead_letter(
        message,
        topic="demo.dead-letters",
        group="demo.generators",
        error=error or DecodeError("schema 5 does not fit"),
        attempts=1,
        failed_at=failed_at,
    )


def consumed(record: OutRecord, offset: int = 0) -> KafkaMessage:
    return KafkaMessage(
        topic=record.topic, partition=0, offset=offset, key=record.key, value=record.value, headers=record.headers
    )


def parsed(record: OutRecord) -> DeadLetter:
    letter = parse(consumed(record))
    assert letter is not None
    return letter


def test_a_dead_letter_keeps_the_message_and_says_why() -> None:
    record = a_letter()
    assert (record.topic, record.key, record.value) == ("demo.dead-letters", b"group-1", MESSAGE.value)
    assert dict(record.headers) == {
        "traceparent": b"00-abc",
        "original.topic": b"demo.prompts",
        "original.partition": b"3",
        "original.offset": b"77",
        "original.timestamp": b"1770000000123",
        "consumer.group": b"demo.generators",
        "error.class": b"DecodeError",
        "error.message": b"schema 5 does not fit",
        "attempts": b"1",
        "failed_at": b"2026-03-01T12:00:00+00:00",
        "schema_id": b"5",
    }


@given(
    value=st.none() | st.binary(max_size=40),
    key=st.none() | st.binary(max_size=10),
    text=st.text(max_size=50),
    header=st.binary(max_size=10),
)
def test_any_message_is_known_again_and_comes_back_as_it_was(
    value: bytes | None, key: bytes | None, text: str, header: bytes
) -> None:
    message = MESSAGE._replace(value=value, key=key, headers=(("mine", header),))
    letter = parsed(a_letter(message, error=ValueError(text.encode("utf-8", "replace").decode())))
    assert doubt_of(letter, run="demo", bounds=(0, 100), lying=lambda: message) is None
    back = replay_record(message)
    assert (back.topic, back.key, back.value) == ("demo.prompts", key, value)
    assert back.headers == (("mine", header), (REPLAYS, b"1"))


def doubted(message: KafkaMessage, *, bounds: tuple[int, int] | None = (0, 100), group: str = "demo.generators") -> str:
    """The kind of doubt about a letter that says `message`, where MESSAGE lies; "" for none."""
    letter = replace(parsed(a_letter(message)), identity=LetterIdentity(group, *message[:3]))
    doubt = doubt_of(letter, run="demo", bounds=bounds, lying=lambda: MESSAGE)
    return doubt.kind if doubt else ""


def test_a_letter_of_another_topic_group_or_content_than_its_place_has_is_doubted() -> None:
    for topic in ("demo.scored", "demo.weights", "demo.ledger", "other.prompts", "payments", ""):
        assert doubted(MESSAGE._replace(topic=topic)) == "foreign", topic
    for group in ("demo.scorers", "demo.trainer", "demo.readers", "demo.", "other.generators", ""):
        assert doubted(MESSAGE, group=group) == "foreign", group
    for value in (b"", None, b"\0\0\0\0\5bodY", b"\0\0\0\0\5body\0", bytes(20_000_000)):
        assert doubted(MESSAGE._replace(value=value)) == "forged"
    # Where nothing was ever written.
    assert doubted(MESSAGE, bounds=None) == doubted(MESSAGE, bounds=(0, 77)) == "forged"
    assert doubted(MESSAGE._replace(offset=2**63)) == doubted(MESSAGE._replace(offset=-5)) == "forged"
    # Its message is gone: nobody forged it, and nobody can replay it.
    assert doubted(MESSAGE, bounds=(78, 100)) == "expired"


def test_a_cut_letter_is_compared_by_the_sum_that_it_names() -> None:
    large = MESSAGE._replace(value=bytes(20_000_000))
    letter = parsed(a_letter(large))
    assert doubt_of(letter, run="demo", bounds=(0, 100), lying=lambda: large) is None
    assert doubt_of(letter, run="demo", bounds=(0, 100), lying=lambda: MESSAGE) is not None


def test_each_stage_writes_letters_only_of_topics_that_its_group_may_replay() -> None:
    assert {group: {topic.name for topic in topics} for group, topics in READ_BY.items()} == {
        "generators": {"prompts", "eval-prompts", "serve-prompts"},
        "scorers": {"rollouts", "eval-rollouts", "serve-rollouts"},
        "trainer": {"scored"},
        "feedback": {"feedback", "serve-scored"},
        "ingest": {"ingest-prompts"},
    }


def test_a_forged_letter_does_not_hide_the_true_one_of_the_same_place() -> None:
    forged = a_letter(MESSAGE._replace(value=b"other"), failed_at=NOON - timedelta(days=9))
    letters = distinct([consumed(forged), consumed(a_letter())])
    assert [letter.value for letter in letters] == [b"other", MESSAGE.value]


def test_the_same_message_dead_lettered_twice_is_listed_once() -> None:
    again = a_letter(failed_at=NOON + timedelta(minutes=1))
    (letter,) = distinct([consumed(again, 1), consumed(a_letter(), 0)])
    assert letter.identity == LetterIdentity("demo.generators", "demo.prompts", 3, 77)
    assert letter.failed_at == NOON.isoformat()


def test_the_same_offset_met_by_another_group_is_another_dead_letter() -> None:
    other = dead_letter(
        MESSAGE, topic="demo.dead-letters", group="demo.scorers", error=ValueError(), attempts=1, failed_at=NOON
    )
    assert len(distinct([consumed(a_letter()), consumed(other)])) == 2


def a_marker(letter: OutRecord, *, hours: int = 0) -> OutRecord:
    return marker(parsed(letter), replay_at(hours), topic="demo.dead-letters")


def replay_at(hours: int) -> Replay:
    return Replay((NOON + timedelta(hours=hours)).isoformat(), 3, 90)


def test_what_a_marker_says_is_kept_with_its_letter_wherever_it_lies() -> None:
    letter = a_letter()
    for order in ([letter, a_marker(letter, hours=1)], [a_marker(letter, hours=1), letter]):
        (listed,) = distinct(consumed(record) for record in order)
        assert listed.said_replays == {replay_at(1)}
        assert listed.value == MESSAGE.value


def test_a_marker_whose_letter_has_expired_is_not_listed() -> None:
    assert distinct([consumed(a_marker(a_letter()))]) == []


def test_replays_are_counted_through_every_return_and_end_at_the_limit() -> None:
    message = MESSAGE
    for round_number in range(MAX_REPLAYS):
        letter = parsed(a_letter(message))
        assert letter.replays == round_number
        assert why_not_replayable(letter) is None
        message = consumed(replay_record(message), 100 + round_number)._replace(partition=3)
    assert "the limit is 3" in (why_not_replayable(parsed(a_letter(message))) or "")


def test_what_was_replayed_is_not_replayed_again() -> None:
    letter = replace(parsed(a_letter()), replayed_at=NOON.isoformat())
    assert "nothing is left to replay" in (why_not_replayable(letter) or "")


def test_a_message_without_our_headers_is_no_dead_letter() -> None:
    assert parse(MESSAGE) is None
    assert parse(MESSAGE._replace(headers=(("original.partition", b"x"),))) is None


def test_an_error_that_is_long_or_that_utf_8_cannot_hold_is_still_said() -> None:
    assert len(parsed(a_letter(error=ValueError("x" * 100_000))).error_message) == 4000
    assert parsed(a_letter(error=ValueError("lone \udc80 surrogate"))).error_message == "lone ? surrogate"


@pytest.mark.parametrize("counter", [b"abc", b"-5", b"", b"\xff", b"1e9", b"9" * 5000, None])
def test_a_counter_that_a_client_made_up_neither_hides_a_letter_nor_counts(counter: bytes | None) -> None:
    letter = parsed(a_letter(MESSAGE._replace(headers=((REPLAYS, counter),))))  # type: ignore[arg-type]
    assert letter.replays == 0
    back = replay_record(MESSAGE._replace(headers=((REPLAYS, counter),)))  # type: ignore[arg-type]
    assert back.headers == ((REPLAYS, b"1"),)


def size(record: OutRecord) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(len(n) + len(v or b"") for n, v in record.headers)


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE._replace(value=bytes(20_000_000)),
        MESSAGE._replace(key=bytes(20_000_000)),
        MESSAGE._replace(headers=(("traceparent", b"00-abc"), ("large", bytes(20_000_000)))),
        MESSAGE._replace(headers=tuple((f"{number}", b"x" * 100) for number in range(100_000))),
    ],
    ids=["value", "key", "header", "headers"],
)
def test_of_a_message_too_large_for_dead_letters_the_beginning_is_kept(message: KafkaMessage) -> None:
    record = a_letter(message)
    assert size(record) < 4 * KEPT_BYTES
    assert message.value is not None
    assert record.value == message.value[:KEPT_BYTES]
    assert message.key is not None
    assert record.key == message.key[:KEPT_BYTES]
    assert record.headers[0] == message.headers[0]
    said = dict(record.headers)
    assert said["original.bytes"] == str(len(message.value)).encode()
    assert said["original.sha256"] == hashlib.sha256(message.value).hexdigest().encode()
    letter = parsed(record)
    assert letter.fingerprint == fingerprint(message.value)
    assert f"{len(message.value)} bytes: the original lies at that topic" in (why_not_replayable(letter) or "")


def test_the_largest_record_is_kept_whole_with_headers_of_its_own() -> None:
    message = MESSAGE._replace(value=bytes(TOPIC_BYTES), headers=(("large", bytes(2**18)),))
    record = a_letter(message)
    assert (record.value, record.headers[0]) == (message.value, message.headers[0])
    assert size(record) < MAX_MESSAGE_BYTES
    assert why_not_replayable(parsed(record)) is None


def test_a_client_cannot_make_a_letter_look_cut() -> None:
    letter = parsed(a_letter(MESSAGE._replace(headers=(("original.bytes", b"77"),))))
    assert letter.cut_from_bytes is None
