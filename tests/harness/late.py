"""Modules that take seconds to import, imported when a test first uses them.

Each process of a run collects the tests of all files, and runs those of a few.
"""

import importlib
from typing import Any


class Late:
    """Stands for a module: `torch = Late("torch")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # Pytest asks everything in a file that it collects for attributes of its own.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
