"""Of two producers of one source the first keeps it; of two processes of one producer the later one goes on."""

from datetime import timedelta

import pytest

from rollstream.producers.claims import Claims
from rollstream.schemas.errors import ConfigurationError, FencedError
from rollstream.schemas.producer import ProducerProgress
from tests.harness.builders import NOON, a_progress

SOURCE = "train.jsonl@5891b5b522d5"
LATER = NOON + timedelta(seconds=5)


def claims(*records: ProducerProgress, name: str = "one") -> Claims:
    made = Claims(name, SOURCE)
    for record in records:
        made.note(record, LATER)
    return made


def test_a_second_producer_of_a_source_is_refused_with_the_name_of_the_first() -> None:
    with pytest.raises(ConfigurationError, match=r"producer 'two' has had the source .* Set name = 'two' to go on"):
        claims(a_progress("two")).claim(LATER)


def test_another_source_and_ones_own_earlier_records_are_no_hindrance() -> None:
    made = claims(a_progress("one"), a_progress("two", source="test.jsonl@000000000000"))
    made.claim(LATER)
    assert made.claimed_at == NOON
    assert made.incarnation is not None
    assert made.incarnation > a_progress("one").incarnation


def test_of_two_that_claim_at_the_same_time_exactly_one_goes_on() -> None:
    one, two = claims(name="one"), claims(name="two")
    one.claim(LATER)
    two.claim(NOON + timedelta(seconds=4))
    two.note(a_progress("one", claimed_at=LATER), LATER)
    with pytest.raises(ConfigurationError, match="producer 'two' has had the source"):
        one.note(a_progress("two", claimed_at=NOON + timedelta(seconds=4)), LATER)


def test_a_producer_that_took_another_source_leaves_the_first_one_free() -> None:
    claims(a_progress("two"), a_progress("two", source="test.jsonl@000000000000")).claim(LATER)


def test_a_process_ends_when_a_later_one_of_its_name_claims_and_not_for_what_an_earlier_one_still_writes() -> None:
    first, second = claims(), claims()
    first.claim(NOON)
    assert first.incarnation is not None
    by_first = a_progress("one", incarnation=first.incarnation)
    second.note(by_first, LATER)
    second.claim(NOON)
    assert second.incarnation is not None
    second.note(by_first, LATER)
    with pytest.raises(FencedError, match="a later process runs as producer 'one'"):
        first.note(a_progress("one", incarnation=second.incarnation), LATER)


def test_a_record_from_the_future_ends_nobody() -> None:
    made = claims(a_progress("one", incarnation=2**53))
    made.claim(LATER)
    made.note(a_progress("one", incarnation=2**53), LATER)
    assert made.incarnation is not None
    assert made.incarnation < 2**52
