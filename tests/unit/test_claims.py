"""Of two producers of one source the first keeps it; of two processes of one producer the later one goes on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollstream.producers.claims import Claims
from rollstream.producers.plausible import LogEnds, microseconds
from rollstream.schemas.errors import ConfigurationError, FencedError
from rollstream.schemas.producer import ProducerProgress
from tests.harness.builders import NOON, a_progress

SOURCE = "train.jsonl@5891b5b522d5"
LATER = NOON + timedelta(seconds=5)


ENDS = LogEnds(prompts={0: 100, 1: 100}, ledger=100)


def claims(*records: ProducerProgress, name: str = "one") -> Claims:
    made = Claims(name, SOURCE)
    for record in records:
        note(made, record)
    return made


def note(made: Claims, record: ProducerProgress, appended_at: datetime = LATER) -> None:
    made.note(record, appended_at, lambda: ENDS)


@pytest.mark.parametrize("claimed_at", [NOON, NOON - timedelta(days=90)])
def test_a_second_producer_of_a_source_is_refused_with_the_name_of_the_first(claimed_at: datetime) -> None:
    with pytest.raises(ConfigurationError, match=r"producer 'two' has had the source .* Set name = 'two' to go on"):
        claims(a_progress("two", claimed_at=claimed_at)).claim(LATER, ENDS)


def test_another_source_and_ones_own_earlier_records_are_no_hindrance() -> None:
    made = claims(a_progress("one"), a_progress("two", source="test.jsonl@000000000000"))
    made.claim(LATER, ENDS)
    assert made.claimed_at == NOON
    assert made.incarnation is not None
    assert made.incarnation > a_progress("one").incarnation


def test_of_two_that_claim_at_the_same_time_exactly_one_goes_on() -> None:
    one, two = claims(name="one"), claims(name="two")
    one.claim(LATER, ENDS)
    two.claim(NOON + timedelta(seconds=4), ENDS)
    note(two, a_progress("one", claimed_at=LATER))
    with pytest.raises(ConfigurationError, match="producer 'two' has had the source"):
        note(one, a_progress("two", claimed_at=NOON + timedelta(seconds=4)))


def test_a_producer_that_took_another_source_leaves_the_first_one_free() -> None:
    claims(a_progress("two"), a_progress("two", source="test.jsonl@000000000000")).claim(LATER, ENDS)


def test_a_process_ends_when_a_later_one_of_its_name_claims_and_not_for_what_an_earlier_one_still_writes() -> None:
    first, second = claims(), claims()
    first.claim(NOON, ENDS)
    assert first.incarnation is not None
    by_first = a_progress("one", incarnation=first.incarnation)
    note(second, by_first)
    second.claim(NOON, ENDS)
    assert second.incarnation is not None
    note(second, by_first)
    with pytest.raises(FencedError, match="a later process runs as producer 'one'"):
        note(first, a_progress("one", incarnation=second.incarnation))


def test_a_producer_never_goes_back_in_a_source_but_may_take_another_and_come_back() -> None:
    made = claims(*(a_progress("one", incarnation=number, mark=mark) for number, mark in ((1, "5/0"), (2, "3/0"))))
    for mark in ("5/7", "4/0", "x", ""):
        note(made, a_progress("one", incarnation=3, mark=mark))
    note(made, a_progress("one", incarnation=3, mark="0/9", source="test.jsonl@000000000000"))
    made.claim(LATER, ENDS)
    assert made.num_refused == 5
    assert made.own is not None
    assert made.own.mark == "0/9"
    assert made.own_of_source is not None
    assert made.own_of_source.mark == "5/0"


def test_a_record_from_the_future_ends_nobody() -> None:
    made = claims(a_progress("one", incarnation=2**53))
    made.claim(LATER, ENDS)
    note(made, a_progress("one", incarnation=2**53))
    assert made.incarnation is not None
    assert made.incarnation < 2**52


HOUR = 3_600_000_000
UNTRUE = {
    "offset of the ledger": {"ledger_offset": 2**53},
    "offset of the ledger, one too far": {"ledger_offset": 101},
    "offset of prompts": {"prompts_offsets": {"0": 2**53}},
    "offset of prompts, one too far": {"prompts_offsets": {"0": 100, "1": 101}},
    "partition that is none": {"prompts_offsets": {"7": 1}},
    "partition that is no number": {"prompts_offsets": {"x": 1}},
    "partition of many digits": {"prompts_offsets": {"0" * 5000: 1}},
    "sequence": {"next_sequence": 2**53, "mark": "18"},
    "sequence, one too far": {"next_sequence": 201},
    "mark": {"mark": f"{2**53}/0"},
    "mark beyond its sequence": {"mark": "19/0"},
    "mark of many digits": {"mark": "9" * 1000},
    "claim since 1970": {"claimed_at": datetime(1970, 1, 1, tzinfo=UTC)},
    "claim from later on": {"claimed_at": LATER + timedelta(hours=1)},
    "incarnation an hour ahead": {"incarnation": microseconds(LATER) + HOUR},
    "incarnation of 2^53": {"incarnation": 2**53},
}


@pytest.mark.parametrize("change", UNTRUE.values(), ids=UNTRUE)
def test_a_record_that_the_log_contradicts_moves_ends_and_dispossesses_nobody(change: dict[str, Any]) -> None:
    true = a_progress("one")
    forged = a_progress("one", **{"incarnation": true.incarnation + 1, **change})
    started = claims(true, forged)
    started.claim(LATER, ENDS)
    assert (started.own, started.claimed_at, started.num_refused) == (true, NOON, 1)
    assert started.incarnation is not None
    note(started, forged.model_copy(update={"incarnation": max(forged.incarnation, started.incarnation + 1)}))
    assert (started.own, started.num_refused) == (true, 2)
    # Of another name, it claims the source.
    ghost = a_progress("ghost", **{"claimed_at": NOON - timedelta(minutes=1), **change})
    for records in ((true, ghost), (ghost, true)):
        started = claims(*records)
        started.claim(LATER, ENDS)
        note(started, ghost)
        assert started.num_refused == 2


def test_a_claim_of_the_same_minutes_is_believed_whoever_is_there_first() -> None:
    started = claims()
    started.claim(LATER, ENDS)
    with pytest.raises(ConfigurationError, match="producer 'two' has had the source"):
        note(started, a_progress("two", claimed_at=LATER - timedelta(minutes=9)))


def test_a_machine_whose_clock_is_an_hour_ahead_is_told_so() -> None:
    made = claims()
    made.claim(LATER + timedelta(hours=1), ENDS)
    with pytest.raises(ConfigurationError, match="this machine's clock is more than 10 minutes ahead"):
        note(made, a_progress("one", incarnation=made.incarnation))
