"""Loads an environment by its name or its dotted path."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from rollstream.environments.protocol import Environment
from rollstream.environments.sort_digits import SortDigits
from rollstream.environments.word_count import WordCount
from rollstream.schemas.errors import BrokenEnvironmentError, UnknownEnvironmentError

_BY_NAME: Final[Mapping[str, Callable[..., Environment]]] = {"sort_digits": SortDigits, "word_count": WordCount}
_PARTS: Final = ("name", "rubric", "sampling", "tasks")


def load_environment(name: str, options: Mapping[str, str] | None = None) -> Environment:
    """The environment called `name`: one of ours, or `package.module.Class` (a class or a function that makes one).

    Raises `UnknownEnvironmentError` if there is none or it does not take `options`. Raises `BrokenEnvironmentError` if
    its own code raises.
    """
    make = _BY_NAME.get(name) or _imported(name)
    try:
        made = make(**(options or {}))
        missing = [part for part in _PARTS if not hasattr(made, part)]
    except KeyboardInterrupt:
        raise
    # BaseException: code of a user may also call sys.exit, which must not end this process.
    except BaseException as error:
        if options and isinstance(error, TypeError | ValueError):
            raise UnknownEnvironmentError(f"environment {name!r} does not take {dict(options)}: {error}") from error
        raise _broken(name, error) from error
    if missing:
        raise UnknownEnvironmentError(
            f"environment {name!r} is a {type(made).__name__} without {', '.join(missing)}; "
            "rollstream.environments.protocol says what an environment has"
        )
    return made


def _imported(path: str) -> Callable[..., Environment]:
    module, _, attribute = path.rpartition(".")
    if not module or module.startswith("."):
        raise _unknown(path, "it names no module")
    try:
        loaded = import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The missing module may be the environment's own, or one that the environment imports.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise _unknown(path, str(error)) from error
        raise _broken(path, error) from error
    if not hasattr(loaded, attribute):
        raise _unknown(path, f"module {module!r} has no {attribute!r}")
    found: Callable[..., Environment] = getattr(loaded, attribute)
    return found


def _unknown(path: str, why: str) -> UnknownEnvironmentError:
    known = ", ".join(sorted(_BY_NAME))
    return UnknownEnvironmentError(
        f"environment {path!r} is neither one of {known} nor an importable dotted path: {why}"
    )


def _broken(name: str, error: BaseException) -> BrokenEnvironmentError:
    return BrokenEnvironmentError(
        f"environment {name!r} raised {type(error).__name__} while loading: {error}; mend its code, or name another one"
    )
