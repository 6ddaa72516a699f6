"""Imports one data set of the library reasoning-gym without the hundred others.

`import reasoning_gym` imports all of them, and with them sympy and matplotlib: seconds, more than loading an
environment may take when the files are not in memory yet. One of them, `zebra_puzzles`, also needs pycosat, which has
no wheel, so that without it nothing at all could be imported. A data set is a module of its own, though, so the
packages around it are entered without running their `__init__`, and left again afterwards. Some data sets import more
when they are made, so whatever they do is done inside `Library.entered`.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rollstream.schemas.errors import ConfigurationError

_PACKAGE: Final = "reasoning_gym"
_NAME: Final = re.compile(r'^DATASET_NAME\s*=\s*"(\w+)"', re.MULTILINE)
_REGISTERS: Final = "register_dataset("


@dataclass(frozen=True, slots=True)
class Library:
    """One data set: its class, the class of its options, and the packages that its module is in."""

    dataset: Any
    config: Any
    packages: tuple[str, ...]

    def entered(self) -> AbstractContextManager[None]:
        """Within the block the data set may import its own modules."""
        return _bare_packages(self.packages)


def load_dataset(name: str) -> Library:
    """The data set of this name.

    Raises `ValueError` for a name that there is none of, and `ConfigurationError` if something is not installed.
    """
    module = ".".join(_path_of(name).relative_to(_root().parent).with_suffix("").parts)
    packages = (_PACKAGE, ".".join(module.split(".")[:2]))
    try:
        with _bare_packages(packages):
            import_module(module)
            factory = import_module(f"{_PACKAGE}.factory")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this dataset needs {error.name!r}, which is not installed: {error}") from error
    dataset, config = factory.DATASETS[name]
    return Library(dataset, config, packages)


@cache
def _root() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError("reasoning-gym is not installed: install rollstream[rewards]")
    return Path(spec.origin).parent


def _path_of(name: str) -> Path:
    """The file of a data set. Most have its name, so that seldom all have to be read."""
    likely: Iterable[Path] = _root().glob(f"*/**/{name}.py") if name.isidentifier() else ()
    for path in (*likely, *_root().glob("*/**/*.py")):
        if _dataset_in(path) == name:
            return path
    known = {_dataset_in(path) for path in _root().glob("*/**/*.py")}
    raise ValueError(f"dataset must be one of reasoning-gym's: {', '.join(sorted(filter(None, known)))}")


def _dataset_in(path: Path) -> str | None:
    """The data set that a file defines. It is read from the source, since importing them is what costs."""
    text = path.read_text(encoding="utf-8")
    named = _NAME.search(text)
    return named[1] if named and _REGISTERS in text else None


@contextmanager
def _bare_packages(names: Sequence[str]) -> Iterator[None]:
    """Within the block these packages exist with their path alone, but for those that somebody has imported.

    Afterwards they are gone, so that a later import of the package gets all of it.
    """
    bare = {name: _bare(name) for name in names if name not in sys.modules}
    sys.modules.update(bare)
    try:
        yield
    finally:
        for name, module in bare.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@cache
def _bare(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = [str(_root().parent.joinpath(*name.split(".")))]
    return module
