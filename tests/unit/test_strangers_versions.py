"""Which versions on `weights` no trainer published."""

from datetime import timedelta

import pytest

from rollstream.history.ledger import LedgerFold
from rollstream.history.passing import RecordPlace
from rollstream.history.read import History
from rollstream.history.repair import foreign_versions
from rollstream.schemas.weights import WeightsPublished
from tests.harness.builders import an_entry, published

ENTRY = an_entry()
OWN = published(1, created_at=ENTRY.started_at, uri="file:///store/1-trainer-1")
BEFORE = published(1, created_at=ENTRY.started_at - timedelta(days=1), uri="file:///store/1-stranger")
AFTER = published(1, created_at=ENTRY.finished_at + timedelta(days=1))
OTHER_PARENT = published(1, created_at=ENTRY.started_at, parent_version=None)


def found(*records: WeightsPublished, skipped: frozenset[RecordPlace] = frozenset()) -> list[str]:
    history = History(
        published={}, entries={1: ENTRY}, fold=LedgerFold(), newest_version=1, problems=(), skipped=skipped
    )
    on_topic = {RecordPlace("weights", offset): record for offset, record in enumerate(records)}
    return [f"{place}: {error}" for place, error in foreign_versions(on_topic, history)]


def test_a_version_is_the_trainers_if_an_entry_made_it() -> None:
    assert found(OWN) == []
    assert found(published(7)) == ["weights@0: no entry of the ledger made version 7"]
    # What readers pass over already is not found again.
    assert found(BEFORE, OWN, skipped=frozenset({RecordPlace("weights", 0)})) == []


@pytest.mark.parametrize("forged", [BEFORE, AFTER, OTHER_PARENT])
def test_of_two_records_with_one_number_the_one_that_agrees_with_the_ledger_is_the_trainers(
    forged: WeightsPublished,
) -> None:
    assert found(OWN, forged) == ["weights@1: version 1 is published at weights@0"]
    assert found(forged, OWN) == ["weights@0: version 1 is published at weights@1"]
