"""Prompts for RL and demonstrations for SFT. A name is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollstream.training.datasets.data_buffer import DataBuffer as DataBuffer

_MODULES = {"DataBuffer": "data_buffer"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"{__name__} has no {name!r}, only {', '.join(_MODULES)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
