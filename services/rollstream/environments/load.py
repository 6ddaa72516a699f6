"""Loads an environment by its name: a built-in one, or one that the run's settings declare."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

from rollstream.environments.ifeval.ifeval import IfEval
from rollstream.environments.protocol import Environment
from rollstream.environments.reasoning_gym import ReasoningGym
from rollstream.environments.running_sum import RunningSum, RunningSumTurns
from rollstream.environments.scoring_only import BySource, Math, MultipleChoice, StructuredOutput
from rollstream.environments.session import SessionVerdict
from rollstream.environments.sort_digits import SortDigits
from rollstream.environments.word_count import WordCount
from rollstream.process.settings.declared import Declaration, why_refused
from rollstream.schemas.errors import BrokenEnvironmentError, ConfigurationError, UnknownEnvironmentError

# Libraries that take long to import are imported when an environment is made, not here.
_BUILT_IN: Final[Mapping[str, Callable[..., Environment]]] = {
    "by_source": BySource,
    "ifeval": IfEval,
    "math": Math,
    "multiple_choice": MultipleChoice,
    "reasoning_gym": ReasoningGym,
    "session": SessionVerdict,
    "running_sum": RunningSum,
    "running_sum_turns": RunningSumTurns,
    "sort_digits": SortDigits,
    "structured_output": StructuredOutput,
    "word_count": WordCount,
}
_PARTS: Final = ("name", "rubric", "sampling", "tasks")


def refuse_unknown_environment(name: str, declared: Mapping[str, Declaration]) -> None:
    """Raise `UnknownEnvironmentError` unless `name` is built in or `declared`. Nothing is imported."""
    why = why_refused(name, "environments", built_in=_BUILT_IN, declared=declared)
    if why:
        raise UnknownEnvironmentError(why)


def load_environment(name: str, declared: Mapping[str, Declaration] | None = None) -> Environment:
    """The environment called `name`, made with the options that the settings give it.

    Raises `UnknownEnvironmentError` if the settings know none, or if it does not take its options. Raises
    `BrokenEnvironmentError` if its own code raises.
    """
    known = declared or {}
    refuse_unknown_environment(name, known)
    declaration = known.get(name, Declaration())
    make = _imported(name, declaration.path) if declaration.path else _BUILT_IN[name]
    try:
        made = make(**declaration.plain_options)
        missing = [part for part in _PARTS if not hasattr(made, part)]
    except KeyboardInterrupt:
        raise
    # BaseException: code of a user may also call sys.exit, which must not end this process.
    except BaseException as error:  # noqa: BLE001
        told, cause = declaration.told(error), declaration.cause(error)
        # A built-in one that lacks an option it needs raises these too.
        if (declaration.options or name in _BUILT_IN) and isinstance(error, TypeError | ValueError):
            names = ", ".join(declaration.options) or "(none)"
            raise UnknownEnvironmentError(
                f"environment {name!r} does not take its options {names} as they are: {told}; "
                f"correct them in [environments.{name}]"
            ) from cause
        raise _broken(name, error, told) from cause
    if missing:
        raise UnknownEnvironmentError(
            f"environment {name!r} is a {type(made).__name__} without {', '.join(missing)}; "
            "rollstream.environments.protocol says what an environment has"
        )
    return made


def _imported(name: str, path: str) -> Callable[..., Environment]:
    module, _, attribute = path.rpartition(".")
    try:
        loaded = import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The missing module may be the environment's own, or one that the environment imports.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise _unknown(name, path, str(error)) from error
        raise _broken(name, error, str(error)) from error
    if not hasattr(loaded, attribute):
        raise _unknown(name, path, f"module {module!r} has no {attribute!r}")
    found: Callable[..., Environment] = getattr(loaded, attribute)
    return found


def _unknown(name: str, path: str, why: str) -> UnknownEnvironmentError:
    return UnknownEnvironmentError(f"[environments.{name}] path = {path!r} names nothing that can be imported: {why}")


def _broken(name: str, error: BaseException, told: str) -> BrokenEnvironmentError:
    if isinstance(error, ConfigurationError):
        return BrokenEnvironmentError(f"environment {name!r} can't be made: {told}")
    return BrokenEnvironmentError(
        f"environment {name!r} raised {type(error).__name__} while loading: {told}; mend its code, or name another one"
    )
