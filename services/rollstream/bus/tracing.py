"""Spans of what happens to messages, by OpenTelemetry's conventions for messaging."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.process.tracing.context import context_in
from rollstream.process.tracing.spans import GROUP_ID, Attributes, Span, Tracing

_KEY_BYTES: Final = 128


def processing(tracing: Tracing, message: KafkaMessage, *, operation: str, group: str) -> Span:
    """The span of the work on one message, which a member of a consumer group does; a child of the message's context.

    `operation` is one word for the work, e.g. score.
    """
    span = tracing.start(f"{operation} {message.topic}", "consumer", parent=context_in(message.headers))
    if span.is_recorded:
        span.set(
            {
                **_messaging(message.topic, operation, "process", message.key),
                "messaging.destination.partition.id": str(message.partition),
                "messaging.kafka.offset": message.offset,
                "messaging.consumer.group.name": group,
            }
        )
    return span


@contextmanager
def sending(tracing: Tracing, records: Sequence[OutRecord], *, operation: str) -> Iterator[Sequence[OutRecord]]:
    """The records with the contexts of their spans, which end with the block: when the broker has confirmed them."""
    if not tracing.is_on:
        yield records
        return
    spans = [_sent(tracing, record, operation) for record in records]
    paired = zip(records, spans, strict=True)
    try:
        yield [replace(record, headers=(*record.headers, *span.headers)) for record, span in paired]
    except BaseException as error:
        for span in spans:
            span.fail(type(error).__name__)
        raise
    finally:
        for span in spans:
            span.end()


def _sent(tracing: Tracing, record: OutRecord, operation: str) -> Span:
    span = tracing.start(f"{operation} {record.topic}", "producer", parent=context_in(record.headers))
    if span.is_recorded:
        span.set(_messaging(record.topic, operation, "send", record.key))
    return span


def _messaging(topic: str, operation: str, operation_type: str, key: bytes | None) -> Attributes:
    # Prompts and what comes of them are keyed by their group. A stranger's key may be anything.
    name = (key or b"")[:_KEY_BYTES].decode("utf-8", "replace")
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
        "messaging.kafka.message.key": name,
        GROUP_ID: name,
    }
