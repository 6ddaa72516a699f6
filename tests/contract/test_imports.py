"""What holds for all modules: light imports, one namespace, layers, sizes, and commands that exist."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import grimp
import pytest

from rollstream.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
READMES = (
    "README.md",
    "schemas/README.md",
    "services/README.md",
    "services/rollstream/archive/README.md",
    "services/rollstream/offline/README.md",
    "services/rollstream/rows/README.md",
    "producers/README.md",
    "trainer/README.md",
    "trainer/rollstream/training/README.md",
)
SOURCES = [ROOT / name / "rollstream" for name in ("schemas", "services", "producers", "trainer")]
HEAVY = ("torch", "vllm", "transformers", "faust", "confluent_kafka", "pyarrow")
LIGHT = (
    "rollstream.schemas.codec",
    "rollstream.schemas.topics",
    "rollstream.schemas.registry",
    "rollstream.schemas.compatibility",
    "rollstream.schemas.errors",
    "rollstream.bus.message",
    "rollstream.process.settings.base",
    "rollstream.bus.offsets",
    "rollstream.history.ledger",
    "rollstream.history.weight_store",
    "rollstream.engines.protocol",
    "rollstream.engines.settings",
    "rollstream.environments.protocol",
    "rollstream.environments.rubric",
    "rollstream.tools.protocol",
    "rollstream.tools.build",
    "rollstream.agents.protocol",
    "rollstream.generator.settings",
    "rollstream.generator.handler",
    "rollstream.scorer.settings",
    "rollstream.scorer.handler",
    "rollstream.producers.settings",
    "rollstream.producers.credit",
    "rollstream.ingest.settings",
    "rollstream.ingest.entries",
    "rollstream.trainer",
    "rollstream.trainer.settings",
    "rollstream.training",
    "rollstream.training.types",
    "rollstream.training.learning.advantages",
    "rollstream.training.types",
    "rollstream.training.rollout_gen",
    "rollstream.training.filters",
    "rollstream.trainer.intake.assembler",
    "rollstream.cli.main",
    "rollstream.cli.options",
)


def test_help_imports_nothing_but_the_table_of_commands() -> None:
    code = "import sys; from rollstream.cli.main import main\ntry: main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "Stages:" in output
    imported = output.splitlines()[-1].split()
    assert _heavy(imported) == []
    assert [name for name in sorted(imported) if name.startswith("rollstream.") and name.count(".") == 2] == [
        "rollstream.cli.main",
        "rollstream.schemas.errors",
    ]


def test_the_help_of_a_command_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from rollstream.cli.main import COMMANDS, cli\n"
        "for name in COMMANDS: assert CliRunner().invoke(cli, [name, '--help']).exit_code == 0, name\n"
        "print(*sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    slow = {"torch", "vllm", "transformers", "faust", "pyarrow", "pandas", "datasets", "aiohttp"}
    assert slow & set(output.split()) == set()


def test_light_modules_import_nothing_heavy() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [h for h in {HEAVY!r} if h in sys.modules]\n"
        "    if loaded: sys.exit(f'{name} imports {loaded}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_only_the_adapter_imports_the_registry_client() -> None:
    using = [path.name for path in _modules() if "confluent_kafka.schema_registry" in path.read_text()]
    assert using == ["registry_url.py"]


def test_no_two_modules_import_each_other_not_even_for_types() -> None:
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*rooms, exclude_type_checking_imports=False, cache_dir=None)
    imports = {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}
    assert sorted((one, other) for one, other in imports if one < other and (other, one) in imports) == []


def test_the_namespace_has_no_init_and_each_part_is_typed() -> None:
    # The training library gives its names by itself; elsewhere a module is imported by its own name.
    packages = {path.relative_to(source).parts[0] for source in SOURCES for path in source.rglob("__init__.py")}
    assert packages <= {"training", "trainer"}
    parts = [part for source in SOURCES for part in source.iterdir() if part.is_dir() and part.name != "__pycache__"]
    assert [part for part in parts if not (part / "py.typed").is_file()] == []


def test_no_file_is_over_400_lines_and_no_function_over_60() -> None:
    files = [*_modules(), *(ROOT / "tests").rglob("*.py")]
    assert [str(path) for path in files if len(path.read_text().splitlines()) > 400] == []
    assert [f"{path}:{name}" for path in files for name in _long_functions(path)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_explains_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help


def test_the_commands_that_the_readme_shows_exist() -> None:
    shown = [words for path in READMES for words in _shown_commands((ROOT / path).read_text())]
    assert len(shown) > 15, "the READMEs show no commands"
    assert [words for words in shown if not _exists(words)] == []


def test_the_readme_is_for_ten_minutes() -> None:
    assert (ROOT / "README.md").stat().st_size <= 12_000


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md", "helm/README.md"])
def test_what_a_readme_links_to_is_there(name: str) -> None:
    page = ROOT / name
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in [one.lower().replace(" ", "-") for one in headings], heading


def _heavy(modules: list[str]) -> list[str]:
    return [heavy for heavy in HEAVY if heavy in modules]


def _modules() -> Iterator[Path]:
    for source in SOURCES:
        yield from sorted(source.rglob("*.py"))


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > 60:
                yield f"{node.name} ({length} lines)"


def _shown_commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"```(?:bash|sh|console)?\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`((?:uv run (?:--\S+ )*)?rollstream [^`]*)`", text)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()] + inline
    found = [re.match(r"(?:uv run (?:--\S+ )*)?rollstream (.*)", line) for line in lines]
    return [match.group(1).split("#")[0].split() for match in found if match]


def _exists(words: list[str]) -> bool:
    """Whether the words up to the first option or argument name commands that exist."""
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-") or not re.fullmatch(r"[a-z-]+", word):
            return True
        below = command.get_command(click.Context(command), word)
        if below is None:
            return False
        command = below
    return True
