"""`rollstream tail`: print the newest records of a topic, one on each line."""

import json
from contextlib import nullcontext, suppress
from typing import Any, Final

import click

from rollstream.bus.message import KafkaMessage, Partition
from rollstream.bus.run import Run
from rollstream.cli.options import connected, json_option, settings_option, whole
from rollstream.process.settings.base import StageSettings
from rollstream.process.terminal import say
from rollstream.schemas.topics import STREAM_TOPICS, TOPICS, Topic, topic_named
from rollstream.stage.dead_letters import parse
from rollstream.views.reading import Decoded, Decoder, last_messages
from rollstream.views.rendering import clock, dead_letter_line, json_text, one_line, plain, quoted

_LINE_WIDTH: Final = 200


@click.command()
@click.argument("topic", metavar="TOPIC", type=click.Choice([topic.name for topic in (*TOPICS, *STREAM_TOPICS)]))
@click.option("-n", "--lines", default=10, show_default=True, type=whole(1), help="Newest records to show.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@json_option
@settings_option
def command(topic: str, lines: int, follow: bool, as_json: bool, settings: StageSettings) -> None:
    """Print the newest records of TOPIC, one on each line: time, partition/offset, and what is in it."""
    # Ctrl-C is how people end what follows.
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        _tail(topic_named(topic), connected(settings), lines, follow=follow, as_json=as_json)


def _tail(topic: Topic[Any], run: Run, count: int, *, follow: bool, as_json: bool) -> None:
    decoder = Decoder(run)
    # The ends are noted first: records that come while the last ones are printed are then followed.
    seen = run.ends(topic)
    for message in last_messages(run, topic, count):
        _show(topic, decoder.decode(message), as_json)
        partition = message.topic_partition
        seen[partition] = max(seen[partition], message.offset + 1)
    if follow:
        _follow(run, decoder, topic, seen, as_json=as_json)


def _follow(run: Run, decoder: Decoder, topic: Topic[Any], start: dict[Partition, int], *, as_json: bool) -> None:
    with run.reader(topic, start=start) as reader:
        while True:
            for message in reader.poll():
                _show(topic, decoder.decode(message), as_json)


def _show(topic: Topic[Any], decoded: Decoded, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(_row(topic, decoded)))
    else:
        say(_line(topic, decoded))


def _line(topic: Topic[Any], decoded: Decoded) -> str:
    message = decoded.message
    place = f"{clock(message.timestamp_ms)} {message.partition}/{message.offset} "
    if decoded.record is not None:
        return place + one_line(decoded.record)
    if _is_tombstone(topic, message):
        return f"{place}deleted: {_text(message.key or b'')}"
    if topic in STREAM_TOPICS:
        return f"{place}{_text(message.key or b'')} {quoted(_text(message.value or b''), _LINE_WIDTH)}"
    letter = parse(message)
    return place + (f"unreadable: {decoded.error}" if letter is None else dead_letter_line(letter))


def _row(topic: Topic[Any], decoded: Decoded) -> dict[str, Any]:
    message = decoded.message
    row = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "key": None if message.key is None else _text(message.key),
        "headers": {name: _text(value) for name, value in message.headers},
    }
    if decoded.record is not None:
        return {**row, "value": plain(decoded.record)}
    if _is_tombstone(topic, message):
        return {**row, "value": None, "error": "deleted"}
    if topic in STREAM_TOPICS:
        with suppress(ValueError, RecursionError):
            return {**row, "value": json.loads(message.value or b"")}
    return {**row, "value": None, "value_hex": plain(message.value), "error": decoded.error}


def _is_tombstone(topic: Topic[Any], message: KafkaMessage) -> bool:
    return message.value is None and not message.undecoded and topic.retention.startswith("compacted")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
