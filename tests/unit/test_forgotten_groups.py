"""Which closed groups a ledger's fold forgets: by the broker's time alone, whatever a trainer's clock says."""

from datetime import timedelta

from rollstream.history.ledger import LedgerFold
from rollstream.schemas.ledger import EntryKind
from tests.harness.ledger_entries import NOW, START, a_fold, entry, step, stored


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
