"""Which entries of an archived ledger survive, and what a new entry changes about older ones."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from rollstream.archive.branch import Branch, BranchState
from rollstream.history.ledger import LedgerFold, surviving
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry, SkippedRecord
from tests.harness.builders import an_entry

START = an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


def a_step(version: int, parent: int, number: int) -> LedgerEntry:
    return an_entry(step=number, weight_version=version, parent_version=parent)


def some_drops(version: int) -> LedgerEntry:
    return an_entry(EntryKind.DROPS, weight_version=version)


def a_restart(version: int, parent: int, number: int) -> LedgerEntry:
    return an_entry(EntryKind.RESTART, step=number, weight_version=version, parent_version=parent)


def a_repair(*offsets: int, version: int) -> LedgerEntry:
    skipped = tuple(SkippedRecord(topic="ledger", partition=0, offset=offset) for offset in offsets)
    return an_entry(EntryKind.SKIP, weight_version=version, skipped=skipped)


def test_a_restart_cuts_what_follows_the_entry_of_its_parent() -> None:
    branch = Branch()
    # Offsets have gaps, since each transaction ends with a marker.
    entries = [START, a_step(1, 0, 1), some_drops(1), a_step(2, 1, 2), a_restart(3, 1, 1), a_step(4, 3, 2)]
    for number, entry in enumerate(entries):
        assert branch.add(2 * number, entry) == frozenset()
    assert [offset for offset in range(12) if branch.survives(offset)] == [0, 2, 8, 10]
    assert branch.next_offset == 11


def test_what_was_known_before_a_cut_has_changed_if_it_reaches_what_was_cut() -> None:
    branch = Branch()
    for offset, entry in enumerate([START, a_step(1, 0, 1), a_step(2, 1, 2), a_restart(3, 1, 1)]):
        branch.add(offset, entry)
    assert branch.has_changed(known_until=3, newest=2)
    assert not branch.has_changed(known_until=3, newest=1), "the entry before the cut stays"
    assert not branch.has_changed(known_until=4, newest=3), "it was known already"
    branch.add(4, a_restart(4, 0, 0))
    assert branch.has_changed(known_until=4, newest=1)
    assert not branch.has_changed(known_until=0, newest=0)


def test_an_entry_that_contradicts_others_never_survives() -> None:
    branch = Branch()
    for offset, entry in enumerate([START, a_step(1, 0, 1), a_step(9, 5, 2), a_step(2, 1, 2)]):
        branch.add(offset, entry)
    assert [branch.survives(offset) for offset in range(4)] == [True, True, False, True]


def test_a_repair_says_what_a_new_branch_passes_over() -> None:
    entries = [START, a_step(9, 0, 1), a_step(1, 0, 1), a_repair(1, version=9)]
    branch = Branch()
    named = [branch.add(offset, entry) for offset, entry in enumerate(entries)]
    assert named == [frozenset(), frozenset(), frozenset(), {1}]
    assert branch.survives(1)
    assert not branch.survives(2), "it contradicts the stranger's entry"
    repaired = Branch(frozenset({1}))
    for offset, entry in enumerate(entries):
        assert repaired.add(offset, entry) == frozenset()
    assert [repaired.survives(offset) for offset in range(4)] == [True, False, True, False]
    assert repaired.has_changed(known_until=3, newest=0), "which of the older entries it changes is not asked"


def an_entry_like(fold: LedgerFold, kind: str, number: int) -> LedgerEntry:
    """The next entry of a ledger whose fold this is; a stranger's may contradict."""
    current, following = fold.current_version or 0, fold.max_version + 1
    return {
        "step": a_step(following, current, fold.step + 1),
        "drops": some_drops(current),
        "restart": a_restart(following, number % following, 0),
        "stranger": a_step(number, number, 1),
    }[kind]


@given(st.lists(st.tuples(st.sampled_from(["step", "drops", "restart", "stranger"]), st.integers(0, 20)), max_size=30))
def test_the_branch_is_that_of_the_trainers_own_fold(choices: list[tuple[str, int]]) -> None:
    entries, fold, branch = [START], LedgerFold(), Branch()
    fold.add(START)
    branch.add(0, START)
    taken = {0: START}
    for offset, (kind, number) in enumerate(choices, start=1):
        entry = an_entry_like(fold, kind, number)
        entries.append(entry)
        branch.add(offset, entry)
        try:
            fold.add(entry)
        except InconsistentLedgerError:
            continue
        taken[offset] = entry
    chain = [id(entry) for entry in surviving(taken.values()).chain]
    assert [id(entry) for offset, entry in enumerate(entries) if branch.survives(offset)] == chain


@given(
    st.lists(st.tuples(st.sampled_from(["step", "drops", "restart", "stranger"]), st.integers(0, 20)), max_size=30),
    st.integers(1, 4),
)
def test_a_branch_that_forgets_and_goes_on_from_its_state_says_the_same_of_newer_entries(
    choices: list[tuple[str, int]], num_kept: int
) -> None:
    fold, whole, branch = LedgerFold(), Branch(), Branch()
    recorded: dict[int, bool] = {}
    for offset, (kind, number) in enumerate([("start", 0), *choices]):
        entry = START if kind == "start" else an_entry_like(fold, kind, number)
        with suppress(InconsistentLedgerError):
            fold.add(entry)
        whole.add(offset, entry)
        branch.add(offset, entry)
        if branch.is_cut_short:
            return
        recorded |= {known: branch.survives(known, recorded.get(known, False)) for known in range(offset + 1)}
        assert recorded == {known: whole.survives(known) for known in range(offset + 1)}
        branch.forget(num_kept)
        branch = Branch(state=BranchState.model_validate_json(branch.state().model_dump_json()))
        assert len(branch.state().survivors) <= num_kept


def test_a_branch_says_that_an_entry_goes_back_behind_what_it_remembers() -> None:
    branch = Branch()
    for offset, entry in enumerate([START, a_step(1, 0, 1), a_step(2, 1, 2), a_step(3, 2, 3)]):
        branch.add(offset, entry)
    branch.forget(2)
    assert branch.known_from == 2
    branch.add(4, a_restart(4, 2, 2))
    assert not branch.is_cut_short, "the entry that it goes back to is remembered"
    branch.add(5, a_restart(5, 1, 1))
    assert branch.is_cut_short
