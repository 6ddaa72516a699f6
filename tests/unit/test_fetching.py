"""A partition is read while the broker answers, or while records of it wait; else it is named with its silence."""

from rollstream.bus.message import Partition
from rollstream.scorer.fetching import Fetched, FetchWatch

ONE: Partition = ("demo.rollouts", 0)
TWO: Partition = ("demo.rollouts", 1)


def state(answer: int | None, *, has_records: bool = False) -> Fetched:
    return Fetched(answer=answer, has_records=has_records)


def test_a_partition_is_read_from_its_first_answer_on() -> None:
    watch = FetchWatch(10)
    assert watch.look({ONE: state(None)}, 0) == "demo.rollouts/0 was not read yet"
    assert watch.look({ONE: state(1000)}, 1) == ""


def test_one_silent_partition_among_others_is_named_with_its_silence() -> None:
    watch = FetchWatch(10)
    for second in range(13):
        said = watch.look({ONE: state(second), TWO: state(0)}, second)
        assert said == ("" if second <= 10 else f"demo.rollouts/1 was not read for {second} s, at most 10 s")
    assert watch.look({ONE: state(13), TWO: state(13)}, 13) == ""


def test_a_partition_whose_records_wait_here_is_read_although_nothing_is_fetched() -> None:
    watch = FetchWatch(10)
    for second in range(30):
        assert watch.look({ONE: state(0, has_records=True)}, second) == ""


def test_a_partition_that_stays_over_a_rebalance_keeps_its_time_and_one_that_comes_back_does_not() -> None:
    watch = FetchWatch(10)
    watch.look({ONE: state(5)}, 0)
    assert watch.look({ONE: state(None), TWO: state(7)}, 1) == ""
    watch.look({TWO: state(8)}, 2)
    assert watch.look({ONE: state(None), TWO: state(9)}, 3) == "demo.rollouts/0 was not read yet"
