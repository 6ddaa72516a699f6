"""What the code imports is named in pyproject.toml, not only brought along by another package."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

from tests.harness.syntax import ROOT, modules, parsed

PART_OF = {
    "huggingface_hub": "transformers",
    "httpx2": "confluent-kafka[schemaregistry]",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "yarl": "aiohttp",
}
"""Packages whose classes are part of another one's public interface, which therefore chooses their version."""


def imported(path: Path) -> set[str]:
    """The packages that a module imports, anywhere in it."""
    nodes = list(ast.walk(parsed(path)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | named}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = chain(project["dependencies"], *project["optional-dependencies"].values())
    return {plain(re.split(r"[\[<>=!~ ;]", word)[0]) for word in words}


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def test_every_package_that_the_code_imports_is_declared() -> None:
    found = {name for path in modules() for name in imported(path)}
    brought_by = packages_distributions()
    known = declared()
    assert len(found & set(brought_by)) > 30
    others = found - set(sys.stdlib_module_names) - {"rollstream", *PART_OF}
    undeclared = {name for name in others & set(brought_by) if known.isdisjoint(map(plain, brought_by[name]))}
    assert not undeclared
    assert set(PART_OF) <= found
    assert {name.partition("[")[0] for name in PART_OF.values()} <= known
