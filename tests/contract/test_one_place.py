"""What one module alone may do: replace files, lock them, open databases, step an optimizer."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.harness.syntax import ROOT, modules, parsed


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("fcntl", "process/files.py"),
        ("replace", "process/files.py"),
        ("rename", None),
        ("sqlite3", "process/database.py"),
    ],
)
def test_what_needs_care_is_done_in_one_module(name: str, module: str | None) -> None:
    users = {str(path.relative_to(ROOT)) for path in modules() if name in _used(path)}
    assert users == ({f"services/rollstream/{module}"} if module else set())


def test_one_line_steps_an_optimizer() -> None:
    calls = [path for path in modules() for node in ast.walk(parsed(path)) if _steps_an_optimizer(node)]
    assert [str(path.relative_to(ROOT)) for path in calls] == ["trainer/rollstream/training/learning/learner.py"]


def _steps_an_optimizer(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "step" and "optimizer" in ast.unparse(node.value).lower()


@cache
def _used(path: Path) -> frozenset[str]:
    """The modules that are imported, and the methods by which a file gets another name."""
    return frozenset(name for node in ast.walk(parsed(path)) for name in _names_of(node))


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield str(node.module)
    # Texts take two arguments, dates and data classes named ones.
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_of_path = len(node.args) == 1 and not node.keywords
        is_of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        if is_of_path or is_of_os:
            yield node.func.attr
