"""The syntax trees of the project's own modules, for tests that look at all of them: each is parsed once a process."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("schemas", "services", "producers", "trainer")


def modules() -> Iterator[Path]:
    """Every module of the wheel."""
    for part in PARTS:
        yield from sorted((ROOT / part / "rollstream").rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a module, which nobody changes."""
    return ast.parse(path.read_bytes())
