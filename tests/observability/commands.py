"""The commands of rollstream in a text, and whether each exists with its options."""

import re
import shlex
from typing import Final

import click

from rollstream.cli.main import cli
from rollstream.views.configuration import all_keys

_BLOCK: Final = re.compile(r"^(rollstream .*)$", re.MULTILINE)
_INLINE: Final = re.compile(r"`(rollstream [^`\n]+)`")


def commands_in(text: str) -> list[str]:
    """Each command, in a block of its own or within a sentence."""
    # Where a sentence breaks its line within a command, it is one command.
    joined = re.sub(r"`rollstream [^`]+`", lambda found: " ".join(found[0].split()), text)
    return [*_BLOCK.findall(joined), *_INLINE.findall(joined)]


def problem_of(command: str) -> str | None:
    """Why click would refuse this command; None if it would not."""
    words = shlex.split(command)[1:]
    found: click.Command = cli
    context = click.Context(cli, info_name="rollstream")
    while isinstance(found, click.Group):
        if not words:
            return "a command is missing"
        below = found.get_command(context, words[0])
        if below is None:
            return f"there is no command {words[0]!r}"
        found, context = below, click.Context(below, parent=context, info_name=words.pop(0))
    return _problem_of_words(found, context, words)


def _problem_of_words(command: click.Command, context: click.Context, words: list[str]) -> str | None:
    try:
        given, left, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return error.message
    if left:
        return f"too many words: {left}"
    for parameter in command.params:
        if parameter.required and parameter.value_is_missing(given.get(parameter.name or "")):
            return f"{parameter.name} is missing"
        word = given.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice) and isinstance(word, str) and word not in parameter.type.choices:
            return f"{parameter.name} is one of {', '.join(parameter.type.choices)}"
    table = given.get("table")
    if isinstance(table, str) and not any(key.table == table for key in all_keys(None)):
        return f"the settings have no table {table!r}"
    return None
