from rollstream.trainer.commits.restart import with_margin


def test_closed_groups_are_remembered_longer_than_records_are_kept_by_a_day_at_most() -> None:
    hour = 3600.0
    assert [with_margin(kept) for kept in (210.0, 24 * hour, 14 * 24 * hour)] == [420.0, 48 * hour, 15 * 24 * hour]
