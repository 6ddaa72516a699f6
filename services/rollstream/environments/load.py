"""Environments by name or dotted path."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from rollstream.bus.errors import BadMessageError
from rollstream.environments.protocol import Environment
from rollstream.environments.sort_digits import SortDigits
from rollstream.environments.word_count import WordCount

_BY_NAME: Final[Mapping[str, Callable[..., Environment]]] = {"sort_digits": SortDigits, "word_count": WordCount}


class UnknownEnvironmentError(BadMessageError):
    """No environment has this name, or it cannot be made with these options."""


def load_environment(name: str, options: Mapping[str, str] | None = None) -> Environment:
    """The environment called `name`: one of ours, or `package.module.Class` (a class or a function that makes one).

    Raises `UnknownEnvironmentError` saying what there is.
    """
    make = _BY_NAME.get(name) or _imported(name)
    try:
        return make(**(options or {}))
    except (TypeError, ValueError) as error:
        raise UnknownEnvironmentError(f"environment {name!r} does not take {dict(options or {})}: {error}") from error


def _imported(path: str) -> Callable[..., Environment]:
    module, _, attribute = path.rpartition(".")
    known = ", ".join(sorted(_BY_NAME))
    try:
        found: Callable[..., Environment] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownEnvironmentError(
            f"environment {path!r} is neither one of {known} nor an importable dotted path: {error}"
        ) from error
    return found
