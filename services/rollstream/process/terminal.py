"""Makes text from outside safe to print: a record's ids and texts may hold escape sequences that steer a terminal."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click

_MOST_SHOWN: Final = 200


def escaped(text: str, *, keep: str = "") -> str:
    r"""`text` with everything that is not printable as an escape (`\x1b`, `\u202e`), except the characters in `keep`.

    Line breaks are escaped too: one record must not look like two.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def shown(value: Any) -> str:
    """A value from outside for a message: as Python writes it, and only its beginning if that is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


Say = Callable[[str], None]
"""What takes lines for people: `say`, or what a test collects them with."""


def say(line: str) -> None:
    """Print a line on a terminal, with control characters as escapes."""
    click.echo(escaped(line))


def say_all(told: Iterable[str] | Mapping[str, Any]) -> None:
    """Print lines for people; or one JSON object."""
    if isinstance(told, Mapping):
        click.echo(json.dumps(told))
        return
    for line in told:
        say(line)
