"""Who keeps a source of two producers, and the credit that it has: ids count once, and again when a cut opens them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.history.ledger import surviving
from rollstream.producers.claims import Claims
from rollstream.producers.credit import Credit, CreditMark
from rollstream.producers.plausible import LogEnds, microseconds
from rollstream.schemas.errors import ConfigurationError, FencedError, InconsistentLedgerError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.producer import ProducerProgress
from tests.harness.builders import NOON, a_progress, an_entry

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


class Ledger:
    """Entries as a trainer writes them; an entry's offset is its place in the list."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.version = -1
        self.restart(None)

    def step(self, *groups: str, checkpoint: str | None = None) -> None:
        self._add(EntryKind.STEP, groups, surviving(self.entries).current_version, checkpoint)

    def drops(self, *groups: str) -> None:
        current = surviving(self.entries).current_version
        self.entries.append(
            an_entry(EntryKind.DROPS, weight_version=current, checkpoint=None, closed=closing(groups), step=0)
        )

    def restart(self, parent: int | None) -> None:
        self._add(EntryKind.RESTART, (), parent, None)

    def fold_into(self, credit: Credit, start: int = 0) -> Credit:
        """Feed `credit` the entries from offset `start` on."""
        for offset, entry in list(enumerate(self.entries))[start:]:
            credit.fold_in(entry, offset)
        return credit

    def _add(self, kind: EntryKind, groups: Iterable[str], parent: int | None, checkpoint: str | None) -> None:
        self.version += 1
        self.entries.append(
            an_entry(
                kind, weight_version=self.version, parent_version=parent, checkpoint=checkpoint, step=0,
                closed=closing(groups),
            )
        )  # fmt: skip


def closing(groups: Iterable[str]) -> tuple[ClosedGroup, ...]:
    return tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in groups)


def credit_of(share: int, *groups: str) -> Credit:
    credit = Credit(share)
    for group in groups:
        credit.submitted(group)
    return credit


def test_what_is_submitted_uses_credit_once_until_it_closes() -> None:
    ledger, credit = Ledger(), credit_of(2, "a", "b", "a")
    assert (credit.free, credit.num_outstanding) == (0, 2)
    ledger.step("a", "of-another-producer")
    assert ledger.fold_into(credit).free == 1
    ledger.drops("b")
    assert ledger.fold_into(credit, 2).free == 2


def test_a_cut_makes_groups_outstanding_again_even_beyond_the_share() -> None:
    ledger, credit = Ledger(), credit_of(1, "a")
    ledger.step("a")
    ledger.fold_into(credit)
    credit.submitted("b")
    ledger.restart(0)
    ledger.fold_into(credit, 2)
    assert (credit.num_outstanding, credit.free) == (2, 0)
    ledger.step("a", "b")
    assert ledger.fold_into(credit, 3).free == 1


def test_a_mark_begins_at_the_second_newest_checkpoint() -> None:
    ledger, credit = Ledger(), credit_of(9, *"abcdef")
    for number, group in enumerate("abcde"):
        ledger.step(group, checkpoint=None if number % 2 else f"checkpoint {number}")
    mark = ledger.fold_into(credit).mark()
    assert mark == CreditMark(ledger_offset=3, open_groups=("f",), recently_closed=("d", "e"))
    again = ledger.fold_into(Credit(9, mark), mark.ledger_offset)
    assert (again.mark(), again.num_outstanding) == (mark, 1)


def test_an_entry_that_goes_back_further_than_the_mark_is_refused_and_changes_nothing() -> None:
    ledger = Ledger()
    for group in "abcd":
        ledger.step(group, checkpoint=group)
    mark = ledger.fold_into(credit_of(9, *"abcde")).mark()
    credit = ledger.fold_into(Credit(9, mark), mark.ledger_offset)
    ledger.restart(1)
    with pytest.raises(InconsistentLedgerError, match=r"comes after version 1, which is not among the 2 surviving"):
        ledger.fold_into(credit, 5)
    assert credit.mark() == mark
    assert not credit.is_whole
    assert ledger.fold_into(credit_of(9, *"abcde")).mark().open_groups == tuple("bcde")


@pytest.mark.parametrize("kind", [EntryKind.STEP, EntryKind.DROPS, EntryKind.UNKNOWN])
def test_an_entry_that_contradicts_the_ones_before_it_is_refused(kind: EntryKind) -> None:
    credit = Ledger().fold_into(credit_of(1, "a"))
    with pytest.raises(InconsistentLedgerError, match=f"ledger entry {kind.value} of version 7 at offset 1"):
        credit.fold_in(an_entry(kind, weight_version=7, parent_version=6, checkpoint=None, closed=closing("a")), 1)
    assert credit.num_outstanding == 1


def test_what_is_remembered_is_bounded_although_no_checkpoint_is_named() -> None:
    groups = [f"g{number}" for number in range(30_000)]
    ledger, credit = Ledger(), credit_of(1, *groups)
    for first in range(0, len(groups), 1000):
        ledger.step(*groups[first : first + 1000])
    ledger.fold_into(credit)
    assert credit.is_whole
    credit.forget()
    assert 15_000 < len(credit.mark().recently_closed) <= 20_000
    assert credit.ledger_offset > 0
    assert not credit.is_whole


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.just(0)),
        st.tuples(st.sampled_from(["close", "drop", "checkpoint"]), st.integers(0, 7)),
        st.tuples(st.sampled_from(["restart", "roll back", "go on later"]), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(events=EVENTS)
def test_outstanding_is_submitted_minus_closed_however_cuts_and_later_processes_interleave(
    events: list[tuple[str, int]],
) -> None:
    ledger, submitted = Ledger(), list[str]()
    credit = ledger.fold_into(Credit(4))
    for kind, what in events:
        survivors, before = surviving(ledger.entries), len(ledger.entries)
        is_open = [group for group in submitted if group not in survivors.closed]
        if kind == "submit":
            submitted.append(f"g{len(submitted)}")
            credit.submitted(submitted[-1])
        elif kind in ("close", "checkpoint"):
            ledger.step(*is_open[what : what + 1], checkpoint="there" if kind == "checkpoint" else None)
        elif kind == "drop":
            ledger.drops(*is_open[what : what + 1])
        elif kind == "restart":
            newest = survivors.checkpoint
            ledger.restart(0 if newest is None else newest.weight_version)
        elif kind == "roll back":
            versions = [entry.weight_version for entry in survivors.chain]
            ledger.restart(versions[what % len(versions)])
        else:
            mark = credit.mark()
            credit = ledger.fold_into(Credit(4, mark), mark.ledger_offset)
        try:
            ledger.fold_into(credit, before)
        except InconsistentLedgerError:
            # Only a rollback may go back further than a mark; then everything is read again.
            assert kind == "roll back"
            assert not credit.is_whole
            credit = ledger.fold_into(credit_of(4, *submitted))
        assert credit.num_outstanding == len(set(submitted) - set(surviving(ledger.entries).closed))


def test_a_group_that_only_an_entry_without_effect_closed_counts_again_although_its_prompt_is_gone() -> None:
    ledger = Ledger()
    ledger.step("a")
    ledger.drops("b")
    credit = ledger.fold_into(credit_of(4, "a", "b", "c"))
    assert credit.num_outstanding == 1
    del ledger.entries[-1]  # a repair says that it does not count
    assert ledger.fold_into(credit.anew()).mark().open_groups == ("b", "c")
