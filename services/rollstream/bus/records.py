"""Records out of messages, decoded; what cannot be read passed over, since others put it into dead-letters."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rollstream.bus.message import Message
from rollstream.bus.reader import TopicReader
from rollstream.schemas.codec import Codec
from rollstream.schemas.errors import BrokerError, DecodeError
from rollstream.schemas.record import Record

R = TypeVar("R", bound=Record)

_LOG = logging.getLogger(__name__)
_SILENCE_SECONDS = 60.0


def readable(codec: Codec[R], messages: Iterable[Message]) -> Iterator[R]:
    """The records of `messages`; what cannot be read is logged and passed over."""
    for message in messages:
        try:
            yield codec.decode(message.value)
        except DecodeError as error:
            _LOG.warning("passed over an unreadable record: %s", error, extra=message.place())


def up_to_the_end(reader: TopicReader, codec: Codec[R]) -> Iterator[R]:
    """Every record up to the end of the reader's topics, few at once; raises `BrokerError` after a silent minute."""
    heard = time.monotonic()
    while not reader.at_end():
        messages = reader.poll(timeout_seconds=0.1)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SILENCE_SECONDS:
            raise BrokerError(f"{reader.partitions[0][0]}: nothing read for {_SILENCE_SECONDS:.0f} s before its end")
        yield from readable(codec, messages)
