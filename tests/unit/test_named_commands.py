"""What messages, docstrings, comments and readmes name as a command can be typed."""

import re
from importlib.util import find_spec
from pathlib import Path

import click

from rollstream.cli.main import cli
from tests.harness.processes import ROOT

_NAMED = re.compile(r"`rollstream ((?:[a-z][a-z|-]* ?)+)")
_MODULE = re.compile(r"python -m ([a-z_.]+)")
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


def has_program(module: str) -> bool:
    """Whether `python -m MODULE` runs something, seen without importing it: vLLM takes seconds."""
    package, *rest = module.split(".")
    found = find_spec(package)
    places = [Path(folder, *rest) for folder in (found and found.submodule_search_locations) or ()]
    return any(place.with_suffix(".py").is_file() or (place / "__main__.py").is_file() for place in places)


def test_every_module_that_a_readme_runs_is_installed_and_none_types_vllm_serve() -> None:
    texts = [
        path.read_text()
        for pattern in ("*.md", "*/*.md", "helm/*/*.md", "services/rollstream/*/*.md")
        for path in ROOT.glob(pattern)
    ]
    modules = {module.rstrip(".") for text in texts for module in _MODULE.findall(text)}
    assert "vllm.entrypoints.openai.api_server" in modules
    assert [module for module in modules if not has_program(module)] == []
    # The command of the CPU wheel looks for a package of another name.
    assert not any(line.strip().startswith("vllm serve") for text in texts for line in text.splitlines())
