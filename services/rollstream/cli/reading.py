"""Reading topics for people: positioned near the end, streamed, decoded; what can't be read is shown, not fatal."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.bus.errors import BrokerError
from rollstream.bus.message import Message, Partition
from rollstream.bus.reader import FROM_END, TopicReader
from rollstream.bus.settings import StageSettings
from rollstream.schemas.codec import AvroCodec, DecodeError
from rollstream.schemas.record import Record
from rollstream.schemas.topics import TOPICS, Topic

_STILL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A message with the record in it; `record` is None where the bytes are none, and `error` says why."""

    message: Message
    record: Record | None
    error: str | None = None


class Decoder:
    """Decodes the messages of a run's topics by their topic."""

    def __init__(self, settings: StageSettings) -> None:
        registry = settings.registry()
        self._codecs: dict[str, AvroCodec[Any]] = {
            topic.of(settings.run): AvroCodec(topic, registry) for topic in TOPICS if topic.record is not None
        }

    def decode(self, message: Message) -> Decoded:
        """The message, decoded as far as it can be."""
        codec = self._codecs.get(message.topic)
        if codec is None:
            return Decoded(message=message, record=None, error="raw bytes")
        try:
            return Decoded(message=message, record=codec.decode(message.value))
        except DecodeError as error:
            return Decoded(message=message, record=None, error=str(error))


def end_offsets(settings: StageSettings, topics: list[Topic[Any]]) -> dict[Partition, int]:
    """The end of each partition now: what a reader starts from to see only what comes after."""
    with TopicReader(settings.kafka, [topic.of(settings.run) for topic in topics], default_start=FROM_END) as reader:
        return reader.end_offsets()


def near_end(settings: StageSettings, topic: Topic[Any], count: int) -> TopicReader:
    """A reader so placed that the last `count` messages of `topic` are ahead of it."""
    with TopicReader(settings.kafka, [topic.of(settings.run)], default_start=FROM_END) as reader:
        starts, ends = reader.start_offsets(), reader.end_offsets()
    # Transaction markers take offsets too, at most one a message.
    places = {partition: max(starts[partition], end - 2 * count) for partition, end in ends.items()}
    return TopicReader(settings.kafka, [topic.of(settings.run)], start=places)


def stream(reader: TopicReader) -> Iterator[Message]:
    """Everything up to the end of every partition; raises `BrokerError` after a minute without a message."""
    deadline = time.monotonic() + _STILL_SECONDS
    while not reader.at_end():
        messages = reader.poll(timeout_seconds=0.1)
        yield from messages
        if messages:
            deadline = time.monotonic() + _STILL_SECONDS
        elif time.monotonic() > deadline:
            raise BrokerError(f"no message and no end of the topic for {_STILL_SECONDS:.0f} s; is Kafka up?")


def last_messages(settings: StageSettings, topic: Topic[Any], count: int) -> list[Message]:
    """The last `count` messages of `topic`, over all partitions, by time."""
    with near_end(settings, topic, count) as reader:
        found = sorted(stream(reader), key=lambda message: (message.timestamp_ms, message.partition, message.offset))
    return found[-count:]


def at_places(settings: StageSettings, places: Mapping[Partition, set[int]]) -> list[Message]:
    """The messages at these offsets, as far as retention has left them."""
    wanted = {(topic, number, offset) for (topic, number), offsets in places.items() for offset in offsets}
    if not wanted:
        return []
    topics = sorted({topic for topic, _ in places})
    with TopicReader(settings.kafka, topics, default_start=FROM_END) as reader:
        oldest = reader.start_offsets()
    starts = {partition: max(min(offsets), oldest[partition]) for partition, offsets in places.items()}
    found = []
    with TopicReader(settings.kafka, topics, start=starts, default_start=FROM_END) as reader:
        for message in stream(reader):
            place = (message.topic, message.partition, message.offset)
            if place in wanted:
                found.append(message)
                wanted.discard(place)
            if not wanted:
                break
    return found
