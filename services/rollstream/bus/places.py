"""Reads single messages at places that somebody names, e.g. the header of a dead letter."""

import time
from typing import Final, NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from rollstream.bus.clients import made
from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.reader import TRANSIENT, reader_config
from rollstream.bus.receiving import Receiver
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError

_SILENCE_SECONDS: Final = 60.0
# So far it is quicker to read on than to fetch anew.
_NEAR: Final = 100


class MessagePlace(NamedTuple):
    """Where a message lies; `topic` is the full name on the cluster."""

    topic: str
    partition: int
    offset: int


class PlaceReader:
    """Reads messages one by one, in whatever order they are asked for; cheapest in the order of places."""

    def __init__(self, kafka: KafkaSettings, group: str) -> None:
        self._consumer = made(confluent_kafka.Consumer, reader_config(kafka, group), kafka)
        self._receiver = Receiver(self._consumer)
        self._assigned: Partition | None = None
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def message_at(self, place: MessagePlace) -> KafkaMessage | None:
        """The message there, if a committed one lies there. The offset must be within the partition's bounds.

        Raises `BrokerError` if nothing is read for a minute.
        """
        self._go_to(place)
        deadline = time.monotonic() + _SILENCE_SECONDS
        while time.monotonic() < deadline:
            polled = self._consumer.poll(0.5)
            if polled is None:
                continue
            message = self._receiver.message(polled)
            if message is None:
                if self._is_over(polled.error()):
                    return None
            elif message.offset >= place.offset:
                self._position = message.offset + 1
                return message if message.offset == place.offset else None
        raise BrokerError(f"nothing was read for {_SILENCE_SECONDS:.0f} s at {place}; is Kafka up?")

    def _go_to(self, place: MessagePlace) -> None:
        partition = (place.topic, place.partition)
        if partition == self._assigned and 0 <= place.offset - self._position < _NEAR:
            return
        self._consumer.assign([TopicPartition(*place)])
        self._assigned = partition

    def _is_over(self, error: KafkaError) -> bool:
        """Whether the log has no message there: it ended before, or the message was deleted in this moment."""
        self._assigned = None
        if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return True
        if error.fatal() or error.code() not in TRANSIENT:
            raise BrokerError(f"reading single messages: {error.str()} ({error.name()})")
        return False
