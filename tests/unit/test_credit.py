"""Credit counts ids: duplicates count once, groups that a cut opens count again, other producers' groups do not."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.history.ledger import surviving
from rollstream.producers.credit import Credit, CreditMark
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from tests.harness.builders import an_entry


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
