"""A backlog pauses its partitions only once it has been full for a while, and lets them go on before it is empty."""

from rollstream.bus.backlog import FULL_SECONDS, HIGH, LOW, Backlog
from rollstream.bus.message import KafkaMessage

LATER = FULL_SECONDS + 0.1


def filled(count: int, partition: int = 0) -> Backlog:
    backlog = Backlog()
    for offset in range(count):
        backlog.put(KafkaMessage(topic="demo.prompts", partition=partition, offset=offset, key=None, value=b""))
    return backlog


def test_a_backlog_that_is_full_for_a_moment_pauses_nothing_and_is_not_filled_further() -> None:
    backlog = filled(HIGH)
    assert not backlog.must_pause(1.0)
    assert not backlog.has_room(0.0)
    backlog.take()
    assert not backlog.must_pause(1.0 + LATER)
    assert backlog.has_room(0.0)
    assert not filled(HIGH - 1).must_pause(1.0)


def test_a_pause_lasts_until_the_backlog_is_low() -> None:
    backlog = filled(HIGH)
    assert not backlog.must_pause(1.0)
    assert backlog.must_pause(1.0 + LATER)
    backlog.is_paused = True
    assert backlog.has_room(0.0), "what was asked for before may still come"
    while len(backlog) > LOW:
        backlog.take()
        assert backlog.must_pause(9.0)
    backlog.take()
    assert not backlog.must_pause(9.0)


def test_what_was_polled_of_a_partition_that_is_gone_is_forgotten() -> None:
    backlog = filled(3, partition=1)
    backlog.put(KafkaMessage(topic="demo.prompts", partition=0, offset=7, key=None, value=b""))
    backlog.forget([("demo.prompts", 1)])
    assert [backlog.take().offset for _ in range(len(backlog))] == [7]
