"""Reading topics without a group, on a real broker: where a reader goes on that the client stops."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollstream.bus import topic_watch
from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import ConfigurationError, TopicChangedError
from rollstream.schemas.topics import LEDGER
from tests.harness.topics import add_partitions, make_anew
from tests.harness.waits import wait_until

REFUSED = "offset 5 is not in the log, which holds 0 to 3"


def put(settings: KafkaSettings, topic: str, *values: bytes) -> None:
    with Publisher(settings, client_id="test") as publisher:
        for delivery in [publisher.publish_soon(OutRecord(topic=topic, key=value, value=value)) for value in values]:
            delivery.result(20)


def test_an_offset_that_the_log_does_not_hold_is_refused_and_one_that_it_holds_meanwhile_is_read(
    kafka: str, topic_prefix: str
) -> None:
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put(settings, topic, b"0", b"1", b"2")
    start = {(topic, 0): 5}
    with TopicReader(settings, [topic], start=start) as early:
        # Once this one was refused, the client of `early` has been refused by the broker too.
        with TopicReader(settings, [topic], start=start) as late, pytest.raises(ConfigurationError, match=REFUSED):
            wait_until(lambda: late.poll(timeout_seconds=0.1), "an error")
        put(settings, topic, b"3", b"4", b"5", b"6")
        read = wait_until(lambda: early.poll(timeout_seconds=0.1), "the records from offset 5 on")
        assert [message.offset for message in read] == [5, 6]
        wait_until(lambda: early.poll(timeout_seconds=0.1) or early.at_end(), "the end")


def test_reading_to_the_end_goes_on_to_what_the_broker_calls_the_end_although_nothing_seems_to_follow(
    kafka: str, topic_prefix: str
) -> None:
    """A leader that is new gives out less than it has, and its client takes that for the end."""
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put(settings, topic, b"0")
    with TopicReader(settings, [topic]) as reader, ThreadPoolExecutor(1) as aside:
        reading = aside.submit(lambda: [message.offset for message in reader.to_end({(topic, 0): 2})])
        wait_until(reader.at_end, "the end of what is given out")
        assert not reading.done()
        put(settings, topic, b"1")
        assert reading.result(30) == [0, 1]
    with TopicReader(settings, [topic]) as reader:
        assert [message.offset for message in reader.to_end()] == [0, 1]


def test_partitions_that_are_added_are_read_too_from_their_start(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "_LOOK_EVERY_SECONDS", 0.2)
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    with TopicReader(settings, [topic], follows=True) as reader:
        wait_until(lambda: reader.poll(timeout_seconds=0.1) or reader.at_end(), "the end")
        add_partitions(settings, topic, 8)

        def read_elsewhere() -> set[int]:
            # A producer may not know the new partitions at once.
            put(settings, topic, *(b"%d" % number for number in range(40)))
            return {message.partition for message in reader.poll(timeout_seconds=0.1)} - {0}

        wait_until(read_elsewhere, "a record of an added partition")
        assert len(reader.partitions) == 8
        wait_until(lambda: reader.poll(timeout_seconds=0.1) or reader.at_end(), "the end of all partitions")
        assert reader.positions().keys() == set(reader.partitions)


def test_reading_to_the_end_includes_partitions_that_were_added_just_before(kafka: str, topic_prefix: str) -> None:
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    with TopicReader(settings, [topic], follows=True) as reader:
        assert list(reader.to_end()) == []
        add_partitions(settings, topic, 8)
        put(settings, topic, *(b"%d" % number for number in range(40)))
        assert len(list(reader.to_end())) == 40


def test_a_new_reader_does_not_stand_still_at_its_start(kafka: str, topic_prefix: str) -> None:
    """One that does not know the brokers yet loses its first question for offsets, and asks again after 0.5 s or more.

    The quickest of some is looked at, since on a loaded machine each may take long for another reason.
    """
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    seconds = []
    for _ in range(10):
        began = time.monotonic()
        with TopicReader(settings, [topic]) as reader:
            assert list(reader.to_end()) == []
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.4, seconds


def test_an_offset_that_is_refused_since_the_topic_was_made_anew_says_so(kafka: str, topic_prefix: str) -> None:
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    with TopicReader(settings, [topic], start={(topic, 0): 5}) as reader:
        make_anew(settings, topic)
        with pytest.raises(TopicChangedError, match="was made anew while it was read"):
            wait_until(lambda: reader.poll(timeout_seconds=0.1), "the refusal")


def test_a_topic_that_is_made_anew_ends_the_reading(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "_LOOK_EVERY_SECONDS", 0.2)
    settings, topic = KafkaSettings(bootstrap_servers=kafka), LEDGER.of(topic_prefix)
    KafkaAdmin(settings).create_topics(topic_prefix, partitions=1)
    put(settings, topic, b"0", b"1")
    with TopicReader(settings, [topic], follows=True) as reader:
        assert len(list(reader.to_end())) == 2
        make_anew(settings, topic)
        # Longer than the old one was: where the reader stands there are records, but others.
        put(settings, topic, b"2", b"3", b"4")
        with pytest.raises(TopicChangedError, match="was made anew while it was read"):
            wait_until(lambda: reader.poll(timeout_seconds=0.1) is None, "the refusal")
