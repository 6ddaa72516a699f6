"""The trainer stage. Its package gives the names of the training library too."""

from typing import Any

from rollstream import training

__all__ = training.__all__


def __getattr__(name: str) -> Any:
    # No other name: a module of the library may be called as one of the stage's, e.g. `metrics`.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no name {name!r}")
    return getattr(training, name)
