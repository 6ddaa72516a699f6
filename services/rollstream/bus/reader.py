"""Reads topics without a consumer group: from an offset or the start, to the end, and further as records arrive.

The trainer, producers (for credit), weight watchers and all commands read this way: each sees every record, and no
committed offset changes. Partitions that a topic gets meanwhile are read too, from their start, and a topic that is
made anew ends the reading (`topic_watch.py`). Reads are `read_committed`. Transaction markers take offsets, so offsets
are never counts.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from rollstream.bus.admin import KafkaAdmin, what_it_says
from rollstream.bus.clients import CLIENT_LOG, know_brokers, made
from rollstream.bus.commit_notes import ids_note, metadata_of
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.receiving import Receiver
from rollstream.bus.topic_watch import TopicWatch
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError

_LOG = logging.getLogger(__name__)

FROM_START: Final = confluent_kafka.OFFSET_BEGINNING
_METADATA_TIMEOUT_SECONDS = 30.0
_SILENCE_SECONDS: Final = 60.0
# How long the broker holds a fetch back while there is nothing new. The end of a partition is reported with an empty
# fetch, so reading to the end takes at least this long. A new record ends the wait at once.
_TO_END_WAIT_MS: Final = 50
_FOLLOWING_WAIT_MS: Final = 500
# The client reports these while it reconnects by itself: they are no reason to end.
TRANSIENT: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


class TopicReader:
    """Reads all partitions of some topics, by assignment. Synchronous, for one thread."""

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        *,
        start: Mapping[Partition, int] | None = None,
        monitor_group: str | None = None,
        follows: bool = False,
        only: int | None = None,
    ) -> None:
        """`follows`: it reads on for long after the end, where each fetch that brings nothing costs the broker.

        `only`: it reads this partition of each topic alone.
        """
        wait_ms = _FOLLOWING_WAIT_MS if follows else _TO_END_WAIT_MS
        config = {**reader_config(kafka, monitor_group or _group_beside(topics)), "fetch.wait.max.ms": wait_ms}
        self._consumer = made(confluent_kafka.Consumer, config, kafka)
        self._receiver = Receiver(self._consumer)
        self._admin = KafkaAdmin(kafka)
        self._watch = TopicWatch(self._admin, topics)
        for topic in topics:
            know_brokers(self._consumer, topic)
        self._positions: dict[Partition, int] = {}
        self._at_end: set[Partition] = set()
        self._start = start or {}
        self._only = only
        self._consumer.assign([self._next(partition) for partition in self.partitions])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self._wanted(self._watch.partitions)

    @property
    def topic_ids(self) -> dict[str, str]:
        return {topic: self._watch.topic_id(topic) for topic, _ in self._watch.partitions}

    def poll(self, max_messages: int = 500, timeout_seconds: float = 0.5) -> list[KafkaMessage]:
        """The messages that have arrived; waits at most `timeout_seconds` for the first.

        Raises `TopicChangedError` if a topic was deleted or made anew, `BrokerError` and `ConfigurationError`.
        """
        self._read_too(self._wanted(self._watch.added()))
        first = self._consumer.poll(timeout_seconds)
        if first is None:
            return []
        # With a timeout above 0 the client waits until it has all of `max_messages`.
        return self._taken([first, *self._consumer.consume(max_messages - 1, 0.0)])

    def to_end(self, ends: Mapping[Partition, int] | None = None) -> Iterator[KafkaMessage]:
        """All messages up to the end of every partition; raises `BrokerError` if none comes for a minute before.

        `ends`: offsets that must be reached, by default the ends of this moment. The client alone does not know the
        end: a leader that is new says that nothing follows, until it knows that its newest records are committed.
        """
        needed = self._ends() if ends is None else ends
        last_message_at = time.monotonic()
        while not self.at_end() or any(self._positions.get(each, 0) < end for each, end in needed.items()):
            messages = self.poll(timeout_seconds=0.1)
            if messages:
                yield from messages
                # Only now: whoever reads may work for an hour on a message.
                last_message_at = time.monotonic()
            elif time.monotonic() - last_message_at > _SILENCE_SECONDS:
                raise BrokerError(
                    f"nothing was read for {_SILENCE_SECONDS:.0f} s before the end of {self._unread()}; is Kafka up?"
                )

    def at_end(self) -> bool:
        """Whether every partition was read to its end, and nothing has come since."""
        return len(self._at_end) == len(self.partitions)

    def positions(self) -> dict[Partition, int]:
        """The next offset of each partition of which anything is known: a record was read, or its end was seen."""
        return dict(self._positions)

    def commit_for_monitoring(self, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets for lag monitors, and which topics were read for the next process; it reads on elsewhere."""
        if offsets:
            ids, note = self.topic_ids, ids_note(self.topic_ids)
            self._consumer.commit(
                offsets=[
                    TopicPartition(topic, number, offset, metadata=metadata_of(ids[topic], note))
                    for (topic, number), offset in offsets.items()
                ],
                asynchronous=True,
            )

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[Partition, int]:
        self._read_too(self._wanted(self._watch.look()))
        counts = Counter(topic for topic, _ in self._watch.partitions)
        ends = {topic: self._admin.end_offsets(topic, count) for topic, count in counts.items()}
        return {(topic, number): ends[topic][number] for topic, number in self.partitions}

    def _wanted(self, partitions: Sequence[Partition]) -> tuple[Partition, ...]:
        return tuple(each for each in partitions if self._only is None or each[1] == self._only)

    def _read_too(self, added: Sequence[Partition]) -> None:
        """Read these partitions too, which their topics did not have before."""
        if added:
            self._consumer.incremental_assign([self._next(partition) for partition in added])
            _LOG.info("partitions were added and are read too: %s", ", ".join(f"{name}/{n}" for name, n in added))

    def _taken(self, polled: Iterable[confluent_kafka.Message]) -> list[KafkaMessage]:
        messages = []
        for each in polled:
            message = self._receiver.message(each)
            if message is None:
                self._note(each.error(), each)
                continue
            partition = message.topic_partition
            self._at_end.discard(partition)
            self._positions[partition] = message.offset + 1
            messages.append(message)
        return messages

    def _note(self, error: KafkaError, message: confluent_kafka.Message) -> None:
        partition = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(partition)
            # Transaction markers have offsets too, and only this event says that they are passed.
            self._positions[partition] = max(self._positions.get(partition, 0), message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._read_on(partition, error)
        elif error.fatal() or error.code() not in TRANSIENT:
            raise BrokerError(f"reading {partition[0]}: {error.str()} ({error.name()})")
        else:
            _LOG.warning("kafka reader: %s", error.str())

    def _next(self, partition: Partition) -> TopicPartition:
        """Where a partition is to be read next."""
        return TopicPartition(*partition, self._positions.get(partition, self._start.get(partition, FROM_START)))

    def _read_on(self, partition: Partition, error: KafkaError) -> None:
        """Go on where this partition was; raises `ConfigurationError` if the log does not hold that offset.

        A topic that was made anew holds none either, and the client may say so before the next look at the topic.
        librdkafka 2.16 also reports it ("no offset stored") when a broker is lost while a reader begins.
        """
        wanted = self._next(partition)
        try:
            first, end = self._consumer.get_watermark_offsets(wanted, timeout=_METADATA_TIMEOUT_SECONDS)
        except confluent_kafka.KafkaException as failed:
            raise BrokerError(f"asking for the offsets of {partition[0]}: {what_it_says(failed)}") from failed
        if wanted.offset != FROM_START and not first <= wanted.offset <= end:
            self._read_too(self._wanted(self._watch.look()))
            raise ConfigurationError(
                f"{partition[0]}/{partition[1]}: offset {wanted.offset} is not in the log, which holds {first} to "
                f"{end}: {error.str()}"
            )
        _LOG.warning("%s/%d is read on from offset %d: %s", *partition, wanted.offset, error.str())
        self._consumer.incremental_unassign([wanted])
        self._consumer.incremental_assign([wanted])

    def _unread(self) -> list[str]:
        return [f"{topic}/{number}" for topic, number in self.partitions if (topic, number) not in self._at_end]


def _group_beside(topics: Sequence[str]) -> str:
    """The client requires a group id, although with `assign` nothing joins a group; it must lie within the run.

    Where there are ACLs, the client may read only if it may describe its group.
    """
    return f"{topics[0].rpartition('.')[0]}.readers"


def reader_config(kafka: KafkaSettings, group: str) -> dict[str, Any]:
    """librdkafka's settings for all that reads by assignment."""
    return {
        **kafka.client_config(),
        "logger": CLIENT_LOG,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # A reader whose offset is gone must not go on elsewhere: it would miss records silently.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 16384,
        "fetch.max.bytes": 16777216,
    }
