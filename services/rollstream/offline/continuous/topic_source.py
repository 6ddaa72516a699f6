"""Rows that arrive as messages of a topic, each value a JSON object; read without a consumer group, once."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.reader import TopicReader
from rollstream.offline.continuous.sources import FoundRow
from rollstream.offline.continuous.taken import TakenRows
from rollstream.process.settings.base import KafkaSettings
from rollstream.rows.jsonl import row_of_line
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError, DecodeError

TOPIC: Final = "topic:"
"""What a source or a sink begins with if it is a topic; the rest is the topic's whole name on the cluster."""


class MessagesSource:
    """The messages of one topic, from its start on or from where it was read to. `open` it before the first look.

    Raises `ConfigurationError` if the topic does not exist.
    """

    is_endless = True

    def __init__(self, kafka: KafkaSettings, run: str, topic: str, *, accept_loss: bool) -> None:
        require_topic(kafka, topic)
        self._kafka = kafka
        self._monitor_group = f"{run}.readers"
        self._topic = topic
        self._accept_loss = accept_loss
        self._admin = KafkaAdmin(kafka)
        self._reader: TopicReader | None = None
        self._marks: dict[str, int] = {}
        identity = self._admin.identity([topic])
        self.name = f"{TOPIC}{topic} {identity.topic_ids[topic]} of cluster {identity.cluster_id}"

    def open(self, taken: TakenRows) -> TopicReader:
        """The reader of the topic, which is opened at the first call.

        Raises `ConfigurationError` if messages were deleted that were never read, unless that is accepted.
        """
        if self._reader is None:
            start = self._start(taken, self._admin.bounds(self._topic))
            self._reader = TopicReader(
                self._kafka, [self._topic], start=start, monitor_group=self._monitor_group, follows=True
            )
        return self._reader

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        reader = self.open(taken)
        for message in reader.to_end():
            self._marks[f"{self._topic}/{message.partition}"] = message.offset + 1
            yield FoundRow(_row(message))
        for (topic, partition), offset in reader.positions().items():
            # Transaction markers have offsets too.
            self._marks[f"{topic}/{partition}"] = offset

    def marks(self) -> dict[str, Any]:
        return dict(self._marks)

    def close(self) -> None:
        """Leave the cluster."""
        if self._reader is not None:
            self._reader.close()

    def _start(self, taken: TakenRows, bounds: Mapping[int, tuple[int, int]]) -> dict[Partition, int]:
        start = {}
        for partition, (first, _) in bounds.items():
            mark = taken.mark(f"{self._topic}/{partition}")
            if mark is not None and mark < first and not self._accept_loss:
                raise ConfigurationError(
                    f"{self._topic}/{partition} begins with offset {first}, and was read up to {mark}: {first - mark} "
                    "offsets were deleted before they were read; go on without them with --accept-loss, and have the "
                    "topic keep its messages longer"
                )
            if mark is not None:
                start[self._topic, partition] = max(mark, first)
        return start


@contextmanager
def topic_source(
    kafka: KafkaSettings, run: str, topic: str, taken: TakenRows, *, accept_loss: bool
) -> Iterator[MessagesSource]:
    """The source that `topic` is, open; raises what `MessagesSource` and its `open` raise."""
    with closing(MessagesSource(kafka, run, topic, accept_loss=accept_loss)) as source:
        source.open(taken)
        yield source


def require_topic(kafka: KafkaSettings, topic: str) -> None:
    """Raise `ConfigurationError` if the cluster has no such topic, `BrokerError` if no broker answers."""
    if topic not in cluster_topics(kafka):
        raise ConfigurationError(
            f"the cluster at {kafka.bootstrap_servers} has no topic {topic!r}: make it, or name another one, whole as "
            "Kafka's own tools show it"
        )


def _row(message: KafkaMessage) -> ReadRow | BadRow:
    where = f"{message.topic}/{message.partition}@{message.offset}"
    try:
        value = message.checked_value()
    except DecodeError as error:
        return BadRow(message.offset, where, str(error))
    if not value:
        return BadRow(message.offset, where, "it has no value")
    return row_of_line(message.offset, where, value)
