"""Which tests a change reaches: `python -m tests.harness.lanes [BASE]`; the change is what differs from BASE (main).

A test file reaches what it imports, what that imports, and so on. What it starts as a process counts too: a module
whose name stands in a text, as in `-m rollstream.cli.main`, and a command whose name is a text, where the command line
is within reach. A file that is no module counts as all of its part; the contract tests look at every file. What is
deployed, the chart and the compose file, reaches the lanes that read it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

from rollstream.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCES = ("schemas", "services", "producers", "trainer", "tests")
COMMAND_LINE = "rollstream.cli.main"
IMPORTS_BEFOREHAND = "tests.harness.fork_server"
WHO_STARTS_COMMANDS = ("tests.", "rollstream.local.")
ALWAYS = Path("tests/contract")
FOR_EVERY_TEST = {"pyproject.toml", "uv.lock", "conftest.py"}
DEPLOYED = ("helm/", "services/compose/", "docker-compose.yml", ".env.example")
READS_WHAT_IS_DEPLOYED = {Path("tests") / lane for lane in ("chart", "compose", "observability", "ops")}
_MODULE = re.compile(r"\b(?:rollstream|tests)(?:\.\w+)+")


def module_of(file: Path) -> str:
    """The module's name of a file, relative to the repository; of a file that is no module, its part's."""
    parts = file.parts if file.parts[0] == "tests" else file.parts[1:]
    return ".".join([*parts[:-1], file.stem] if file.suffix == ".py" else parts[:2])


@cache
def import_graph() -> grimp.ImportGraph:
    """Who imports or starts which module."""
    texts = {module_of(file.relative_to(ROOT)): _texts(file) for file in _python_files()}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*(name for name in packages if name.startswith("rollstream.")), "tests")
    for module in graph.modules & texts.keys() - {IMPORTS_BEFOREHAND}:
        named = {name for text in texts[module] for name in _MODULE.findall(text)}
        for other in named & graph.modules - {module}:
            graph.add_import(importer=module, imported=other)
    starting = graph.find_downstream_modules(COMMAND_LINE) - {"rollstream.cli"}
    for module in starting & texts.keys():
        for command in texts[module] & COMMANDS.keys() if module.startswith(WHO_STARTS_COMMANDS) else ():
            graph.add_import(importer=module, imported=f"rollstream.cli.{command.replace('-', '_')}")
    return graph


def reached(changed: Iterable[Path], tests: Iterable[Path]) -> list[Path]:
    """The test files that a change of files reaches; all paths are relative to the repository."""
    tests, changed = sorted(tests), [file for file in changed if _is_tested(file)]
    if any(file.name in FOR_EVERY_TEST for file in changed):
        return tests
    is_deployed = any(str(file).startswith(DEPLOYED) for file in changed)
    graph, wanted = import_graph(), {module_of(file) for file in changed}

    def is_reached(test: Path) -> bool:
        if is_deployed and test.parent in READS_WHAT_IS_DEPLOYED:
            return True
        name = module_of(test)
        within = {name} | graph.find_upstream_modules(name)
        return any(module in wanted or ".".join(module.split(".")[:2]) in wanted for module in within)

    return [test for test in tests if changed and (test.parent == ALWAYS or is_reached(test))]


def changed_files(base: str) -> list[Path]:
    """Files that differ from where this branch left `base`, committed or not."""
    since = _git("merge-base", base, "HEAD")[0]
    named = _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in named]


def test_files() -> list[Path]:
    """Every test file, relative to the repository."""
    return [file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py")]


def _is_tested(file: Path) -> bool:
    return file.parts[0] in SOURCES or file.name in FOR_EVERY_TEST or str(file).startswith(DEPLOYED)


def _python_files() -> list[Path]:
    return [file for source in SOURCES for file in (ROOT / source).rglob("*.py")]


def _texts(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> None:
    """Print the lanes that the change reaches, and the files in each."""
    tests = test_files()
    found = reached(changed_files(*(sys.argv[1:] or ["main"])), tests)
    for lane in sorted({test.parent for test in found}):
        names = [test.name for test in found if test.parent == lane]
        num_all = sum(test.parent == lane for test in tests)
        which = f"all {num_all} files" if len(names) == num_all else f"{len(names)} of {num_all}: {', '.join(names)}"
        sys.stdout.write(f"{lane}: {which}\n")


if __name__ == "__main__":
    main()
