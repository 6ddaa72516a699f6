"""`rollstream tail`: print the newest records of a topic, one on each line."""

import json
from typing import Any

import click

from rollstream.bus.message import Partition
from rollstream.bus.run import Run
from rollstream.cli.options import json_option, settings_option
from rollstream.process.settings import StageSettings
from rollstream.schemas.topics import TOPICS, Topic, topic_named
from rollstream.stage.dead_letters import parse
from rollstream.views.reading import Decoded, Decoder, last_messages
from rollstream.views.rendering import clock, dead_letter_line, one_line, plain


@click.command()
@click.argument("topic", metavar="TOPIC", type=click.Choice([topic.name for topic in TOPICS]))
@click.option(
    "-n", "--lines", default=10, show_default=True, type=click.IntRange(min=1), help="Newest records to show."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new records, until Ctrl-C.")
@json_option
@settings_option
def command(topic: str, lines: int, follow: bool, as_json: bool, settings: StageSettings) -> None:
    """Print the newest records of TOPIC, one on each line: time, partition/offset, and what is in it."""
    chosen = topic_named(topic)
    run = Run(settings)
    decoder = Decoder(run)
    # The ends are noted first: records that come while the last ones are printed are then followed.
    seen = run.ends(chosen)
    for message in last_messages(run, chosen, lines):
        click.echo(_line(decoder.decode(message), as_json))
        partition = (message.topic, message.partition)
        seen[partition] = max(seen[partition], message.offset + 1)
    if follow:
        _follow(run, decoder, chosen, seen, as_json=as_json)


def _follow(run: Run, decoder: Decoder, topic: Topic[Any], start: dict[Partition, int], *, as_json: bool) -> None:
    with run.reader(topic, start=start) as reader:
        while True:
            for message in reader.poll():
                click.echo(_line(decoder.decode(message), as_json))


def _line(decoded: Decoded, as_json: bool) -> str:
    if as_json:
        return json.dumps(_row(decoded))
    message = decoded.message
    place = f"{clock(message.timestamp_ms)} {message.partition}/{message.offset} "
    if decoded.record is not None:
        return place + one_line(decoded.record)
    letter = parse(message)
    return place + (f"unreadable: {decoded.error}" if letter is None else dead_letter_line(letter))


def _row(decoded: Decoded) -> dict[str, Any]:
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
    return {**row, "value": None, "value_hex": plain(message.value), "error": decoded.error}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
