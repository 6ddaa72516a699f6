"""Messages as the client gives them out, in our own type. Records that it can't decompress are passed over.

Kafka takes any bytes as the name of a header. Where the client can't read the names, the message has no headers.

The broker bounds only what a record takes when it is compressed: 150 MB of zeros are 5 kB. The client decompresses at
most 100 MB, and fetches what is larger for ever. It says where the compressed batch begins, but not where it ends. So
the records of the batch are passed over one by one, until the next batch is reached.
"""

import logging
from operator import methodcaller
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from rollstream.bus.message import Headers, KafkaMessage, Partition

_LOG = logging.getLogger(__name__)
# The client gives a broken result for such names and leaves an error behind, which becomes a SystemError. A plain
# method call does not look for it: then it comes up later, at any place.
_headers_of = methodcaller("headers")


class Receiver:
    """Turns what `client`, a consumer, gives out into messages."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._next: dict[Partition, int] = {}

    def message(self, polled: confluent_kafka.Message) -> KafkaMessage | None:
        """The message; one without a value if it can't be decompressed; None if `polled` is another error."""
        error = polled.error()
        if error is None:
            return _plain(polled)
        return self._passed_over(polled, error) if error.code() == KafkaError._BAD_COMPRESSION else None

    def _passed_over(self, polled: confluent_kafka.Message, error: KafkaError) -> KafkaMessage | None:
        partition = (polled.topic(), polled.partition())
        offset = max(polled.offset(), self._next.get(partition, 0))
        try:
            self._client.seek(TopicPartition(*partition, offset + 1))
        except confluent_kafka.KafkaException:  # the partition is not ours any more
            return None
        self._next[partition] = offset + 1
        _LOG.warning("%s/%d: offset %d is passed over: %s", *partition, offset, error.str())
        return KafkaMessage(*partition, offset, key=None, value=None, undecoded=error.str())


def _plain(polled: confluent_kafka.Message) -> KafkaMessage:
    # In the order of the fields: with names it takes three times as long.
    return KafkaMessage(
        polled.topic(),
        polled.partition(),
        polled.offset(),
        polled.key(),
        polled.value(),
        _headers(polled),
        polled.timestamp()[1],
    )


def _headers(polled: confluent_kafka.Message) -> Headers:
    try:
        return tuple(_headers_of(polled) or ())
    except (SystemError, UnicodeDecodeError):
        _LOG.warning("%s/%d@%d: a header's name is not UTF-8", polled.topic(), polled.partition(), polled.offset())
        return ()
