"""Rows that arrive as messages of a topic, each value a JSON object; read without a consumer group, once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.clients import cluster_topics
from rollstream.bus.message import Message
from rollstream.bus.reader import TopicReader
from rollstream.collect.continuous.feeds import Found
from rollstream.collect.continuous.state import State
from rollstream.collect.files.rows import BadRow, ReadRow
from rollstream.collect.files.rows_jsonl import row_of_line
from rollstream.process.settings import KafkaSettings
from rollstream.schemas.errors import ConfigurationError, DecodeError

TOPIC: Final = "topic:"
"""What a source or a sink begins with if it is a topic; the rest is the topic's whole name on the cluster."""


class TopicFeed:
    """The messages of one topic, from its start on."""

    is_endless = True

    def __init__(self, reader: TopicReader, topic: str, name: str) -> None:
        self._reader = reader
        self._topic = topic
        self._marks: dict[str, int] = {}
        self.name = name

    def look(self, state: State) -> Iterator[Found]:
        """See `Feed.look`."""
        for message in self._reader.to_end():
            self._marks[f"{self._topic}/{message.partition}"] = message.offset + 1
            yield Found(_row(message))
        for (topic, partition), offset in self._reader.positions().items():
            # Transaction markers have offsets too.
            self._marks[f"{topic}/{partition}"] = offset

    def marks(self) -> dict[str, Any]:
        """See `Feed.marks`."""
        return dict(self._marks)


@contextmanager
def topic_feed(kafka: KafkaSettings, run: str, topic: str, state: State, *, accept_loss: bool) -> Iterator[TopicFeed]:
    """The feed of `topic`, which goes on where the state is.

    Raises `ConfigurationError` if the topic does not exist, is another one than before, or has lost messages that were
    never read, unless `accept_loss`.
    """
    require_topic(kafka, topic)
    admin = KafkaAdmin(kafka)
    identity = admin.identity([topic])
    name = f"{TOPIC}{topic} {identity.topic_ids[topic]} of cluster {identity.cluster_id}"
    start = {}
    for partition, (first, _) in admin.bounds(topic).items():
        mark = state.mark(f"{topic}/{partition}")
        if mark is not None and mark < first and not accept_loss:
            raise ConfigurationError(
                f"{topic}/{partition} begins with offset {first}, and was read up to {mark}: {first - mark} offsets "
                "were deleted before they were read; go on without them with --accept-loss, and have the topic keep "
                "its messages longer"
            )
        if mark is not None:
            start[topic, partition] = max(mark, first)
    with TopicReader(kafka, [topic], start=start, monitor_group=f"{run}.readers", follows=True) as reader:
        yield TopicFeed(reader, topic, name)


def require_topic(kafka: KafkaSettings, topic: str) -> None:
    """Raise `ConfigurationError` if the cluster has no such topic, `BrokerError` if no broker answers."""
    if topic not in cluster_topics(kafka):
        raise ConfigurationError(
            f"the cluster at {kafka.bootstrap_servers} has no topic {topic!r}: make it, or name another one, whole as "
            "`rollstream topics list` or Kafka's own tools show it"
        )


def _row(message: Message) -> ReadRow | BadRow:
    where = f"{message.topic}/{message.partition}@{message.offset}"
    try:
        value = message.checked_value()
    except DecodeError as error:
        return BadRow(message.offset, where, str(error))
    if not value:
        return BadRow(message.offset, where, "it has no value")
    return row_of_line(message.offset, where, value)
