"""The training state as one file of tensors and plain values (no pickled code)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rollstream.schemas.errors import BrokenWorldError

_STATE = "training_state.pt"


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write `state` into `directory`; the caller makes the directory durable and visible."""
    torch.save(dict(state), directory / _STATE)


def read_state(directory: Path) -> dict[str, Any]:
    """What `write_state` wrote, tensors on the CPU; raises `BrokenWorldError` if it cannot be read."""
    path = directory / _STATE
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise BrokenWorldError(
            f"cannot restore {path}: {error}; restore the file or name an older checkpoint"
        ) from error
    return state
