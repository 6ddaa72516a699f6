"""For how long topics keep records, and so for how long a trainer remembers closed groups."""

import pytest

from rollstream.bus.admin import longest_kept_seconds
from rollstream.trainer.commits.restart import with_margin

DAY_MS = 24 * 3600 * 1000
WEEK = (7 * DAY_MS, 7 * DAY_MS)
LARGEST = 2**63 - 1


def test_the_topic_that_keeps_records_longest_counts_and_the_span_of_a_segment_is_added() -> None:
    assert longest_kept_seconds([WEEK, (DAY_MS, DAY_MS)]) == 14 * 24 * 3600.0


@pytest.mark.parametrize("for_ever", [(-1, DAY_MS), (LARGEST, DAY_MS), (DAY_MS, LARGEST), (LARGEST, LARGEST)])
def test_a_topic_may_keep_records_for_ever_which_operators_also_write_as_the_largest_number(
    for_ever: tuple[int, int],
) -> None:
    assert longest_kept_seconds([WEEK, for_ever]) is None


def test_closed_groups_are_remembered_longer_than_records_are_kept_by_a_day_at_most() -> None:
    hour = 3600.0
    assert [with_margin(kept) for kept in (210.0, 24 * hour, 14 * 24 * hour)] == [420.0, 48 * hour, 15 * 24 * hour]
