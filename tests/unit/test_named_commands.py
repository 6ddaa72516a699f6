"""What messages, docstrings and comments name as a command of ours can be typed."""

import re
from pathlib import Path

import click

from rollstream.cli.main import cli
from tests.harness.processes import ROOT

_NAMED = re.compile(r"`rollstream ((?:[a-z][a-z|-]* ?)+)")
_BETWEEN_LITERALS = re.compile(r'"\s*\n\s*f?"')


def unknown_word(words: str) -> str | None:
    """The first of the words that names no command of the one before it; `create|delete` are two."""
    context, command = click.Context(cli), cli
    for word in words.split():
        if not isinstance(command, click.Group):
            return None
        found = [command.get_command(context, name) for name in word.split("|")]
        if None in found:
            return word
        command = found[0]  # type: ignore[assignment]
    return None


def commands_of(path: Path) -> list[str]:
    return _NAMED.findall(_BETWEEN_LITERALS.sub("", path.read_text()))


def test_every_command_that_the_code_names_exists() -> None:
    sources = [
        path for folder in ("services", "producers", "trainer", "schemas") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    named = [(path, words) for path in sources for words in commands_of(path)]
    assert len(named) > 50
    assert [(path.name, words) for path, words in named if unknown_word(words)] == []
