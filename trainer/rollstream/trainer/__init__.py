"""The trainer stage. Its package gives the names of the training library too."""

from typing import Any

from rollstream import training

__all__ = training.__all__


def __getattr__(name: str) -> Any:
    return getattr(training, name)
