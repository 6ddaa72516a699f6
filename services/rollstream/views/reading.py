"""Reads messages of topics for people. A message that can't be decoded is shown as it is, and reading goes on."""

from dataclasses import dataclass
from typing import Any

from rollstream.bus.message import KafkaMessage
from rollstream.bus.run import Run
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import DecodeError
from rollstream.schemas.record import Record
from rollstream.schemas.topics import TOPICS, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A message and its record. If the bytes are no record, `record` is None and `error` says why."""

    message: KafkaMessage
    record: Record | None
    error: str | None = None


class Decoder:
    """Decodes the messages of all topics of a run."""

    def __init__(self, run: Run) -> None:
        self._codecs: dict[str, AvroCodec[Any]] = {
            run.topic(topic): run.codec(topic) for topic in TOPICS if topic.record is not None
        }

    def decode(self, message: KafkaMessage) -> Decoded:
        """The message with its record, or with the reason why it has none."""
        codec = self._codecs.get(message.topic)
        if codec is None:
            return Decoded(message=message, record=None, error="raw bytes")
        try:
            return Decoded(message=message, record=codec.decode(message.checked_value()))
        except DecodeError as error:
            return Decoded(message=message, record=None, error=str(error))


def last_messages(run: Run, topic: Topic[Any], count: int) -> list[KafkaMessage]:
    """The last `count` messages of `topic` over all partitions, ordered by time."""
    # 2 * count, because each transaction also ends with a marker that takes an offset, at most one for each message.
    places = {partition: max(start, end - 2 * count) for partition, (start, end) in run.bounds(topic).items()}
    with run.reader(topic, start=places) as reader:
        found = sorted(reader.to_end(), key=lambda message: (message.timestamp_ms, message.partition, message.offset))
    return found[-count:]
