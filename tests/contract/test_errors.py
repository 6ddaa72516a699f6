"""The error tree is complete: every exception class of the project is in one file, and in the tree at its head."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from rollstream.schemas import errors
from tests.harness.syntax import ROOT, modules, parsed


def test_every_error_of_the_project_is_defined_in_one_file() -> None:
    defined = {str(path.relative_to(ROOT)) for path in modules() if any(_exceptions_in(path))}
    assert defined == {"schemas/rollstream/schemas/errors.py"}


def test_the_tree_names_every_error_its_parent_and_its_exit_code() -> None:
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    real = {kind.__name__: (kind.__bases__[0].__name__, kind.exit_code) for kind in classes}
    assert real.pop("RollstreamError") == ("Exception", 70)
    assert _tree(errors.__doc__ or "") == real


def test_errors_import_nothing_of_the_project() -> None:
    tree = ast.parse(Path(errors.__file__).read_text())
    assert [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)] == []


def _exceptions_in(path: Path) -> Iterator[str]:
    """Names of the classes whose base is called like an exception, or is one of Python's."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(("Error", "Exception", "Exit", "Interrupt", "Warning")) for base in bases):
                yield node.name


def _tree(text: str) -> dict[str, tuple[str, int]]:
    """Parent and exit code of every class below the root, by name, as the picture has them."""
    found = {}
    above = ["RollstreamError"]
    for branch, name, code in re.findall(r"^    ([│ ]*[├└]── )(\w+) +(\d+)  \S", text, re.MULTILINE):
        depth = len(branch) // 4
        found[name] = (above[depth - 1], int(code))
        above[depth:] = [name]
    return found
