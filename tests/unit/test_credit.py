"""Credit counts ids: duplicates count once, groups that a cut opens count again, other producers' groups do not."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from rollstream.history.ledger import surviving
from rollstream.producers.credit import Credit
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from tests.harness.builders import an_entry


def closing(groups: Iterable[str]) -> tuple[ClosedGroup, ...]:
    return tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in groups)


def start() -> LedgerEntry:
    return an_entry(kind=EntryKind.RESTART, step=0, weight_version=0, parent_version=None, trained=(), closed=())


def step(version: int, parent: int, *groups: str) -> LedgerEntry:
    return an_entry(
        kind=EntryKind.STEP, step=version, weight_version=version, parent_version=parent, checkpoint=None, trained=(),
        closed=closing(groups),
    )  # fmt: skip


def drops(version: int, *groups: str) -> LedgerEntry:
    return an_entry(
        kind=EntryKind.DROPS, step=version, weight_version=version, parent_version=None, checkpoint=None, trained=(),
        closed=closing(groups),
    )  # fmt: skip


def restart(version: int, parent: int) -> LedgerEntry:
    return an_entry(
        kind=EntryKind.RESTART, step=parent, weight_version=version, parent_version=parent, trained=(), closed=()
    )


def test_what_is_submitted_uses_credit_until_it_closes() -> None:
    credit = Credit(share=2)
    credit.fold_in(start())
    credit.submitted("a")
    credit.submitted("b")
    assert credit.free == 0
    credit.fold_in(step(1, 0, "a", "of-another-producer"))
    assert (credit.free, credit.num_outstanding) == (1, 1)


def test_a_dropped_group_gives_its_credit_back() -> None:
    credit = Credit(share=1)
    credit.fold_in(start())
    credit.submitted("a")
    credit.fold_in(drops(0, "a"))
    assert credit.free == 1


def test_submitting_again_counts_once() -> None:
    credit = Credit(share=3)
    for _ in range(3):
        credit.submitted("a")
    assert credit.num_outstanding == 1


def test_a_group_that_closed_before_it_was_remembered_is_not_outstanding() -> None:
    credit = Credit(share=3)
    credit.fold_in(start())
    credit.fold_in(step(1, 0, "a"))
    credit.submitted("a")
    assert credit.num_outstanding == 0
    assert credit.is_known("a")


def test_a_cut_makes_groups_outstanding_again_even_beyond_the_share() -> None:
    credit = Credit(share=1)
    credit.fold_in(start())
    credit.submitted("a")
    credit.fold_in(step(1, 0, "a"))
    credit.submitted("b")
    credit.fold_in(restart(2, 0))
    assert (credit.num_outstanding, credit.free) == (2, 0)
    credit.fold_in(step(3, 2, "a", "b"))
    assert credit.free == 1


GROUPS = st.sampled_from([f"g{number}" for number in range(8)])
EVENTS = st.lists(st.one_of(st.tuples(st.just("submit"), GROUPS), st.tuples(st.just("close"), GROUPS),
                            st.tuples(st.just("cut"), st.integers(0, 5))), max_size=40)  # fmt: skip


@given(events=EVENTS)
def test_outstanding_is_submitted_minus_closed_on_the_surviving_branch_however_they_interleave(
    events: list[tuple[str, str | int]],
) -> None:
    credit, entries, submitted = Credit(share=4), [start()], set()
    credit.fold_in(entries[0])
    for kind, what in events:
        survivors = surviving(entries)
        current, newest = survivors.current_version or 0, survivors.max_version
        if kind == "submit":
            submitted.add(what)
            credit.submitted(str(what))
        elif kind == "close":
            entries.append(drops(current, str(what)) if newest % 2 else step(newest + 1, current, str(what)))
            credit.fold_in(entries[-1])
        else:
            versions = [entry.weight_version for entry in survivors.chain]
            entries.append(restart(newest + 1, versions[int(what) % len(versions)]))
            credit.fold_in(entries[-1])
        assert credit.num_outstanding == len(submitted - set(surviving(entries).closed))
