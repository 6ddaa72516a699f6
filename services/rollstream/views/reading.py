"""Reading topics for people: positioned near the end, streamed, decoded; what can't be read is shown, not fatal."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import Message, Partition
from rollstream.bus.reader import TopicReader
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokerError, DecodeError
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


def end_offsets(settings: StageSettings, topic: Topic[Any]) -> dict[Partition, int]:
    """The end of each partition now: what a reader starts from to see only what comes after."""
    name = topic.of(settings.run)
    return {(name, number): end for number, (_, end) in KafkaAdmin(settings.kafka).bounds(name).items()}


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
    name = topic.of(settings.run)
    # Transaction markers take offsets too, at most one a message.
    places = {
        (name, number): max(start, end - 2 * count)
        for number, (start, end) in KafkaAdmin(settings.kafka).bounds(name).items()
    }
    with TopicReader(settings.kafka, [name], start=places) as reader:
        found = sorted(stream(reader), key=lambda message: (message.timestamp_ms, message.partition, message.offset))
    return found[-count:]


def at_places(settings: StageSettings, topic: Topic[Any], places: Mapping[int, set[int]]) -> list[Message]:
    """The messages of `topic` at these offsets by partition, as far as retention has left them."""
    name = topic.of(settings.run)
    wanted = {(number, offset) for number, offsets in places.items() for offset in offsets}
    starts = {
        (name, number): max(start, min(places[number])) if number in places else end
        for number, (start, end) in KafkaAdmin(settings.kafka).bounds(name).items()
    }
    found = []
    with TopicReader(settings.kafka, [name], start=starts) as reader:
        for message in stream(reader):
            if (message.partition, message.offset) in wanted:
                found.append(message)
            if len(found) == len(wanted):
                break
    return found
