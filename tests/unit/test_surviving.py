"""The fold of the ledger: restarts and rollbacks cut entries, their groups are open again, lag follows the parents."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollstream.history.ledger import LedgerFold, surviving
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, SkippedRecord
from rollstream.trainer.commits.restart import RestartPlan, plan_restart
from tests.harness.ledger_entries import NOW, START, a_fold, entry, step, stored


def test_an_empty_ledger_has_no_version() -> None:
    survivors = surviving([])
    assert (survivors.chain, survivors.current_version, survivors.max_version) == ((), None, -1)


ROLLED_BACK = [
    START,
    step(1, 0, step=1, checkpoint="c1", trained=("a",)),
    step(2, 1, step=2, trained=("b",)),
    step(3, 2, step=3, checkpoint="c3", trained=("c",)),
    entry(EntryKind.ROLLBACK, 4, 2, step=2),
]
BRANCHES = {
    "a step": ([START, step(1, 0, trained=("a",), dropped=("b",))], "ab", [0, 1], None),
    "drops before a step": ([START, entry(EntryKind.DROPS, 0, dropped=("b",)), step(1, 0, trained=("a",))], "ab",
                            [0, 0, 1], None),
    "a restart cuts steps and drops": (
        [START, step(1, 0, step=1, checkpoint="c1", trained=("a",)), entry(EntryKind.DROPS, 1, step=1, dropped=("b",)),
         step(2, 1, step=2, trained=("c",)), entry(EntryKind.RESTART, 3, 1, step=1)],
        "a", [0, 1, 3], "c1",
    ),
    "closed again by what is cut": (
        [START, step(1, 0, trained=("a",)), step(2, 1, trained=("a", "b")), entry(EntryKind.RESTART, 3, 1)],
        "a", [0, 1, 3], None,
    ),
    "the newest checkpoint is an ancestor of the version gone back to": (ROLLED_BACK, "ab", [0, 1, 2, 4], "c1"),
    "a version without checkpoint restarts from its ancestor": (
        [*ROLLED_BACK, entry(EntryKind.RESTART, 5, 1, step=1)], "a", [0, 1, 5], "c1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_the_branch_that_survives_has_its_own_groups_versions_and_checkpoint(name: str) -> None:
    entries, closed, versions, checkpoint = BRANCHES[name]
    survivors = surviving(entries)
    assert set(survivors.closed) == set(closed)
    assert [item.weight_version for item in survivors.chain] == versions
    assert (survivors.checkpoint and survivors.checkpoint.checkpoint) == checkpoint
    assert survivors.max_version == max(item.weight_version for item in entries)


def test_a_cut_version_is_not_a_parent_any_more() -> None:
    fold = a_fold(START, step(1, 0), step(2, 1), entry(EntryKind.ROLLBACK, 3, 1))
    with pytest.raises(InconsistentLedgerError, match="version 2, is not on the surviving branch"):
        fold.add(entry(EntryKind.ROLLBACK, 4, 2))


def test_an_entry_that_names_records_to_pass_over_belongs_to_no_branch() -> None:
    skipped = (SkippedRecord(topic="ledger", partition=0, offset=1),)
    skip = entry(EntryKind.SKIP, 0).model_copy(update={"skipped": skipped})
    chain = [START, step(1, 0, step=1, trained=("g",)), skip, step(2, 1, step=2)]
    survivors = surviving(chain)
    assert [link.weight_version for link in survivors.chain] == [0, 1, 2]
    assert set(survivors.closed) == {"g"}
    with pytest.raises(InconsistentLedgerError, match="0 records to skip"):
        surviving([START, entry(EntryKind.SKIP, 0)])


def non_finite(kind: EntryKind, version: int, parent: int | None, *groups: str) -> LedgerEntry:
    """An entry that drops `groups`, since their step had no finite loss."""
    closed = tuple(ClosedGroup(group_id=g, outcome=GroupOutcome.DROPPED, reason="non_finite") for g in groups)
    return entry(kind, version, parent).model_copy(update={"closed": closed})


def planned(*entries: LedgerEntry) -> RestartPlan:
    fold = a_fold(*entries)
    return plan_restart(fold, fold.max_version)


def test_groups_that_made_a_cut_step_non_finite_are_closed_again_by_the_restart_that_cuts_it() -> None:
    partly = step(2, 1, step=2, trained=("e", "f")).model_copy(update={"metrics": {"updates_skipped": 1.0}})
    entries = [
        START,
        non_finite(EntryKind.DROPS, 0, None, "a"),
        step(1, 0, step=1, checkpoint="c1", trained=("b",)),
        non_finite(EntryKind.DROPS, 1, None, "c", "d"),
        entry(EntryKind.DROPS, 1, step=1, dropped=("g",)),
        partly,
        step(3, 2, step=3, trained=("h",)),
    ]
    plan = planned(*entries)
    assert (plan.version, plan.parent, plan.step, plan.checkpoint) == (4, 1, 1, "c1")
    assert plan.non_finite == ("c", "d", "e", "f")
    restart = non_finite(EntryKind.RESTART, plan.version, plan.parent, *plan.non_finite)
    assert set(surviving([*entries, restart]).closed) == {"a", "b", "c", "d", "e", "f"}
    # The next trainer restores the same checkpoint and cuts this restart: what it closed is not forgotten.
    again = planned(*entries, restart, non_finite(EntryKind.DROPS, 4, None, "i"))
    assert again.non_finite == ("c", "d", "e", "f", "i")


def test_before_the_first_checkpoint_a_restart_goes_on_from_the_initial_model() -> None:
    assert planned() == RestartPlan(version=0, parent=None, step=0, checkpoint=None, non_finite=())
    plan = planned(START, step(1, 0, step=1), non_finite(EntryKind.DROPS, 1, None, "a"))
    assert plan == RestartPlan(version=2, parent=0, step=0, checkpoint=None, non_finite=("a",))


def test_lag_counts_steps_on_the_path_and_not_restarts() -> None:
    entries = [START, step(1, 0), step(2, 1), step(3, 2), entry(EntryKind.RESTART, 4, 1), step(5, 4)]
    versions = surviving(entries).versions
    pairs = {(5, 5): 0, (1, 4): 0, (1, 5): 1, (3, 5): 3, (5, 3): 3, (6, 5): None}
    assert {pair: versions.lag(*pair) for pair in pairs} == pairs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry(EntryKind.RESTART, 2), "only the first restart"),
        (entry(EntryKind.RESTART, 2, 7), "version 7, is not on the surviving branch"),
        (step(2, 0), "a step's parent must be 1, not 0"),
        (step(1, 1), "versions only grow"),
        (entry(EntryKind.DROPS, 0), "drops belong to the current version 1"),
        (entry(EntryKind.DROPS, 1, checkpoint="c"), "only an entry that makes a version"),
        (entry(EntryKind.UNKNOWN, 2, 1), "a newer rollstream wrote it"),
    ],
)
def test_an_entry_that_contradicts_the_ledger_is_refused_and_changes_nothing(wrong: LedgerEntry, message: str) -> None:
    fold = LedgerFold()
    fold.add(START)
    fold.add(step(1, 0, trained=("a",)))
    with pytest.raises(InconsistentLedgerError, match=message):
        fold.add(wrong)
    assert (fold.current_version, fold.max_version, fold.closed) == (1, 1, {"a"})
    assert list(fold.surviving_versions()) == [1, 0]
    assert fold.versions == surviving([START, step(1, 0)]).versions


def test_a_snapshot_is_as_small_after_many_steps_as_after_few_once_their_groups_are_forgotten() -> None:
    fold = a_fold(START)
    for version in range(1, 3000):
        fold.add(step(version, version - 1, step=version, trained=(f"g{version}",)))
    fold.add(entry(EntryKind.DROPS, 2999, step=2999), NOW + timedelta(seconds=1))
    fold.forget(timedelta(0))
    assert fold.closed == set()
    assert len(fold.snapshot().model_dump_json()) < 200


def test_a_way_back_behind_the_checkpoints_of_a_snapshot_needs_the_whole_ledger() -> None:
    entries = [START, *(step(v, v - 1, step=v, checkpoint=f"c{v}", trained=(f"g{v}",)) for v in range(1, 151))]
    whole = a_fold(*entries)
    resumed = LedgerFold(stored(whole.snapshot()))
    assert resumed.checkpoint == whole.checkpoint
    back = entry(EntryKind.ROLLBACK, 151, 50)
    with pytest.raises(InconsistentLedgerError, match="version 50 is too old, 51 is remembered"):
        resumed.add(back)
    whole.add(back)
    near = entry(EntryKind.ROLLBACK, 151, 51, step=51)
    assert set(resumed.add(near).reopened) == {f"g{v}" for v in range(52, 151)}
    assert resumed.checkpoint == (51, 51, "c51")


class TrainersOverTime(RuleBasedStateMachine):
    """Trainers that skip closed groups, die, restore the newest surviving checkpoint; operators who roll back."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: list[LedgerEntry] = []
        self.fold = LedgerFold()
        self.resumed = LedgerFold()
        self.groups = 0

    def write(self, new: LedgerEntry) -> None:
        before = set(self.fold.closed)
        change = self.fold.add(new)
        assert set(self.fold.closed) == (before - set(change.reopened)) | set(change.closed)
        assert self.resumed.add(new) == change
        self.ledger.append(new)

    @rule()
    def start_from_a_snapshot(self) -> None:
        self.resumed = LedgerFold(stored(self.resumed.snapshot()))

    def open_groups(self, count: int, again: st.DataObject) -> tuple[str, ...]:
        """Some new groups, and some that were submitted before and are open now."""
        known = [f"g{number}" for number in range(self.groups) if f"g{number}" not in self.fold.closed]
        returning = again.draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        fresh = [f"g{self.groups + number}" for number in range(count)]
        self.groups += count
        return (*returning, *fresh)

    @rule(checkpoint=st.booleans(), trained=st.integers(0, 3), draw=st.data())
    @precondition(lambda self: self.ledger)
    def train(self, checkpoint: bool, trained: int, draw: st.DataObject) -> None:
        version = self.fold.max_version + 1
        self.write(
            step(
                version, self.fold.current_version, step=self.fold.step + 1,
                checkpoint=f"c{version}" if checkpoint else None, trained=self.open_groups(trained, draw),
            )
        )  # fmt: skip

    @rule(count=st.integers(1, 3), draw=st.data())
    @precondition(lambda self: self.ledger)
    def drop(self, count: int, draw: st.DataObject) -> None:
        current = self.fold.current_version
        assert current is not None
        self.write(entry(EntryKind.DROPS, current, step=self.fold.step, dropped=self.open_groups(count, draw)))

    @rule()
    def restart(self) -> None:
        if not self.ledger:
            self.write(entry(EntryKind.RESTART, 0, checkpoint="c0"))
            return
        restored = self.fold.checkpoint
        assert restored is not None
        version = self.fold.max_version + 1
        self.write(entry(EntryKind.RESTART, version, restored.weight_version, step=restored.step))

    @rule(draw=st.data())
    @precondition(lambda self: self.ledger)
    def roll_back(self, draw: st.DataObject) -> None:
        chain = surviving(self.ledger).chain
        older = draw.draw(st.sampled_from([item for item in chain if item.kind is not EntryKind.DROPS]))
        self.write(entry(EntryKind.ROLLBACK, self.fold.max_version + 1, older.weight_version, step=older.step))

    @invariant()
    def each_rollout_is_in_at_most_one_surviving_step(self) -> None:
        chain = surviving(self.ledger).chain
        counts = Counter(rollout.rollout_id for item in chain for rollout in item.trained)
        assert not counts or max(counts.values()) == 1

    @invariant()
    def closed_is_the_union_over_the_chain(self) -> None:
        survivors = surviving(self.ledger)
        assert set(survivors.closed) == {group.group_id for item in survivors.chain for group in item.closed}

    @invariant()
    def the_chain_is_what_walking_back_from_its_end_gives(self) -> None:
        assert list(surviving(self.ledger).chain) == walked_back(self.ledger)

    @invariant()
    def incremental_and_whole_fold_agree(self) -> None:
        whole = surviving(self.ledger)
        made = [item.weight_version for item in whole.chain if item.kind is not EntryKind.DROPS]
        assert list(self.fold.surviving_versions()) == made[::-1]
        assert all(self.fold.is_surviving(version) == (version in made) for version in range(whole.max_version + 2))
        assert (self.fold.closed, self.fold.versions) == (set(whole.closed), whole.versions)
        assert (self.fold.current_version, self.fold.step) == (whole.current_version, whole.step)

    @invariant()
    def a_snapshot_and_what_came_since_are_the_whole_fold(self) -> None:
        assert self.resumed.snapshot() == self.fold.snapshot()
        assert self.resumed.closed == self.fold.closed

    @invariant()
    def versions_only_grow_and_the_step_counts_the_steps(self) -> None:
        versions = [item.weight_version for item in self.ledger if item.kind is not EntryKind.DROPS]
        assert versions == sorted(set(versions))
        assert self.fold.step == sum(item.kind is EntryKind.STEP for item in surviving(self.ledger).chain)

    @invariant()
    def the_checkpoint_is_the_newest_on_the_chain(self) -> None:
        survivors = surviving(self.ledger)
        named = [item for item in survivors.chain if item.checkpoint]
        assert survivors.checkpoint == (named[-1] if named else None)
        assert [known.uri for known in self.fold.checkpoints] == [item.checkpoint for item in named]

    @invariant()
    def lag_to_an_ancestor_is_the_difference_of_steps(self) -> None:
        for item in surviving(self.ledger).chain:
            lag = self.fold.versions.lag(item.weight_version, self.fold.current_version or 0)
            assert lag == self.fold.step - item.step


def walked_back(ledger: list[LedgerEntry]) -> list[LedgerEntry]:
    """The chain by another way: from the end, follow each entry to what it was appended to."""
    chain: list[LedgerEntry] = []
    position = len(ledger) - 1
    while position >= 0:
        item = ledger[position]
        chain.append(item)
        position -= 1
        if item.kind in (EntryKind.RESTART, EntryKind.ROLLBACK):
            while position >= 0 and (
                ledger[position].kind is EntryKind.DROPS or ledger[position].weight_version != item.parent_version
            ):
                position -= 1
    return chain[::-1]


TrainersOverTime.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTrainersOverTime = TrainersOverTime.TestCase


def test_groups_are_forgotten_by_the_time_at_which_they_closed() -> None:
    fold = a_fold(START)
    fold.add(step(1, 0, trained=("a",)), NOW)
    fold.add(step(2, 1, trained=("b",)), NOW + timedelta(days=8))
    assert not fold.is_forgotten(NOW - timedelta(days=90)), "nothing was forgotten yet"
    fold.forget(timedelta(days=7))
    assert fold.closed == {"b"}
    resumed = LedgerFold(stored(fold.snapshot()))
    assert resumed.is_forgotten(NOW)
    assert not resumed.is_forgotten(NOW + timedelta(seconds=1)), "no group closes before its prompt is submitted"
    change = fold.add(entry(EntryKind.RESTART, 3, 0))
    assert change.reopened == ("b",)


def test_a_trainers_clock_that_was_wrong_forgets_no_group_and_keeps_none_for_longer() -> None:
    """Its entries say a year too late; the broker appended them on one day."""
    wrong = {"finished_at": NOW + timedelta(days=365)}
    fold = a_fold(START)
    fold.add(step(1, 0, trained=("a",)).model_copy(update=wrong), NOW)
    fold.forget(timedelta(days=7))
    assert fold.closed == {"a"}
    fold.add(step(2, 1, trained=("b",)), NOW + timedelta(days=8))
    fold.forget(timedelta(days=7))
    assert fold.closed == {"b"}
    assert not fold.is_forgotten(NOW + timedelta(days=1))


def test_a_snapshot_that_holds_a_time_after_the_brokers_is_not_believed() -> None:
    """As versions before this one wrote them, and as after hours of a wrong clock of a broker."""
    fold = a_fold(START)
    fold.add(step(1, 0, trained=("a",)), NOW + timedelta(days=365))
    fold.add(step(2, 1, trained=("b",)), NOW + timedelta(days=400))
    fold.forget(timedelta(days=7))
    false = stored(fold.snapshot())
    assert false.forgotten_until is not None
    assert false.forgotten_until > NOW
    resumed = LedgerFold(false)
    resumed.add(step(3, 2, trained=("c",)), NOW)
    assert not resumed.is_forgotten(NOW + timedelta(seconds=1))
    resumed.add(step(4, 3, trained=("d",)), NOW + timedelta(days=8))
    resumed.forget(timedelta(days=7))
    assert resumed.closed == {"d"}
