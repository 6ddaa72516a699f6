"""Streams on Kafka: a line is a message of JSON, its partition that of the stream, its key the instance of the actor.

The run's name stands for the output directory. `rollstream topics create --streams` makes the topics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rollstream.bus.cloud_events import attributes
from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.run import Run
from rollstream.process.stop import Stop
from rollstream.rc_actor.lines import Line, LineWriter, SingleStreamSpec, StreamSpec
from rollstream.schemas.errors import ConfigurationError, DecodeError
from rollstream.schemas.topics import MAX_RECORD_BYTES, STREAM_TOPICS, Topic

_REPORT_SECONDS: Final = 150.0
"""The client gives a record up before that, and says so."""


class KafkaStreams:
    """The backend `kafka`, of one run."""

    max_bytes = MAX_RECORD_BYTES

    def __init__(self, run: Run) -> None:
        self._run = run

    @contextmanager
    def writer(self, spec: StreamSpec, *, appends: bool) -> Iterator[LineWriter]:
        """Raises `ConfigurationError` for a topic or partition that is not there, and if it should begin anew."""
        topic = self._topic(spec)
        if not appends:
            raise ConfigurationError(f"stream {spec.topic} on Kafka can't be begun anew: name another run, or append")
        with self._run.publisher("rc-actor") as publisher:
            yield _KafkaWriter(publisher, self._run.name, topic, spec.instance)

    @contextmanager
    def lines(self, spec: SingleStreamSpec, *, start: int, stop: Stop | None) -> Iterator[Iterator[Line]]:
        """Messages of other instances are passed over. Raises as `TopicReader` does."""
        topic = self._topic(spec)
        begin = {(self._run.topic(topic), spec.partition): start} if start else None
        with self._run.reader(topic, start=begin, follows=stop is not None, only=spec.partition) as reader:
            yield (_line(message) for message in _messages(reader, stop) if message.key == _key(spec.instance))

    def _topic(self, spec: StreamSpec) -> Topic[Any]:
        """The declared topic, which has the partitions of the stream."""
        named = {topic.name: topic for topic in STREAM_TOPICS}
        if spec.topic not in named:
            raise ConfigurationError(f"no stream {spec.topic!r} on Kafka: there are {', '.join(named)}")
        name = self._run.topic(named[spec.topic])
        count = self._run.admin().shape(name).num_partitions
        if spec.partitions[-1] >= count:
            raise ConfigurationError(
                f"{name} has {count} partitions, and the stream has number {spec.partitions[-1]}: lower it, or make "
                "the topic with more (`rollstream topics create --streams --partitions N`)"
            )
        return named[spec.topic]


class _KafkaWriter:
    """Writes messages, each confirmed by every in-sync replica, see `LineWriter`."""

    def __init__(self, publisher: Publisher, run: str, topic: Topic[Any], instance: int) -> None:
        self._publisher = publisher
        self._run = run
        self._topic = topic.of(run)
        self._type = topic.name
        self._instance = instance

    def write(self, partition: int, content: bytes) -> int:
        record = OutRecord(
            topic=self._topic,
            value=content,
            key=_key(self._instance),
            headers=attributes(self._run, self._type),
            partition=partition,
        )
        return self._publisher.publish_soon(record).result(_REPORT_SECONDS).offset + 1


def _messages(reader: TopicReader, stop: Stop | None) -> Iterator[KafkaMessage]:
    if stop is None:
        yield from reader.to_end()
        return
    while not stop.is_asked:
        yield from reader.poll()


def _line(message: KafkaMessage) -> Line:
    where = f"{message.topic}/{message.partition} offset {message.offset}"
    try:
        value = message.checked_value()
    except DecodeError as error:
        return Line(where, message.offset + 1, None, str(error))
    return Line(where, message.offset + 1, value, "" if value is not None else "it has no value")


def _key(instance: int) -> bytes:
    return str(instance).encode()
