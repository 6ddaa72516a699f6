"""Checkpoints as directories: `step_N/{pytorch_model.bin, optimizer.bin, metadata.json}`.

pytorch_model.bin has the weights exactly as they are trained, optimizer.bin all else that training goes on from. Beside
them lies what makes the directory a model that transformers, vLLM and SGLang load: config, tokenizer, and the weights
as safetensors in the dtype that is published. A directory takes its name when all of it is on the disk.
"""

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any, Final

import torch

from rollstream.process.files import hidden_beside, move, sync_all, writable
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.weight_sync import STEP_NAME

_MODEL: Final = "pytorch_model.bin"
_OPTIMIZER: Final = "optimizer.bin"
_METADATA: Final = "metadata.json"
_LARGEST_METADATA_BYTES: Final = 2**31


def latest_checkpoint(directory: Path) -> Path | None:
    """The checkpoint with the highest number (step_10 is newer than step_9); one that lacks a file does not count."""
    numbers = {path: found for path in directory.glob("step_*") if (found := STEP_NAME.fullmatch(path.name))}
    whole = {path: int(found[1]) for path, found in numbers.items() if not _missing(path)}
    return max(whole, key=lambda path: whole[path], default=None)


def write_checkpoint(
    directory: Path,
    step: int,
    snapshot: Mapping[str, Any],
    metadata: Mapping[str, Any],
    save_weights: Callable[[Path], None] | None,
) -> Path:
    """Write `directory/step_<step>` as a whole, in place of one that is there; returns its path.

    `snapshot`: a learner's. `save_weights` writes what an engine loads, where the model is one for engines. Raises
    ValueError if `metadata` is not for JSON, `ConfigurationError` or `MachineError` if the disk does not take it.
    """
    text = json.dumps(metadata, allow_nan=False)
    if len(text) >= _LARGEST_METADATA_BYTES:
        raise ConfigurationError(
            f"the metadata of step {step} have {len(text)} bytes, over {_LARGEST_METADATA_BYTES}: save fewer metrics, "
            "or over-sample less, so that fewer samples wait"
        )
    path = directory / f"step_{step}"
    part, former = hidden_beside(path, "part"), hidden_beside(path, "former")
    try:
        with writable(path):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            if save_weights is not None:
                save_weights(part)
            state = dict(snapshot)
            _save(state.pop("model"), part / _MODEL)
            _save(state, part / _OPTIMIZER)
            (part / _METADATA).write_text(text + "\n")
            sync_all(part)
            if path.exists():
                shutil.rmtree(former, ignore_errors=True)
                move(path, former)
            move(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(former, ignore_errors=True)
    return path


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of the checkpoint at `path`; raises `ConfigurationError` if it is none, or can't be read."""
    missing = _missing(path)
    if missing:
        raise ConfigurationError(f"{path} is no checkpoint: it has no {missing}; name a directory step_N that has one")
    file = path / _METADATA
    try:
        if file.stat().st_size > _LARGEST_METADATA_BYTES:
            raise ValueError(f"it is over {_LARGEST_METADATA_BYTES} bytes")
        return _checked(json.loads(file.read_text()), path.name)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {file}: {error}; delete {path}, or name another checkpoint") from error


def read_snapshot(path: Path) -> dict[str, Any]:
    """The learner's snapshot in the checkpoint at `path`, tensors on the CPU; raises `ConfigurationError`."""
    return {**_load(path / _OPTIMIZER), "model": _load(path / _MODEL)}


def _checked(found: object, name: str) -> dict[str, Any]:
    """The metadata in the directory `name`; raises ValueError for what no backend wrote there."""
    metadata: dict[str, Any] = found if isinstance(found, dict) else {}
    step = metadata.get("step")
    if type(step) is not int or step < 0:
        raise ValueError(f"its step is {shown(step)}, it must be a whole number from 0")
    named = STEP_NAME.fullmatch(name)
    if named and int(named[1]) != step:
        raise ValueError(f"it is of step {shown(step)}, and the directory is named {name}")
    metrics = metadata.setdefault("metrics", {})
    everyones = metadata.get("metrics_of_processes", [metrics])
    if not isinstance(everyones, list) or not all(isinstance(one, dict) for one in (metrics, *everyones)):
        raise ValueError(f"its metrics are {shown(metrics)}, they must be values by name")
    return metadata


def _save(values: Mapping[str, Any], file: Path) -> None:
    # A stream, since torch's own writer tells of a full disk by a RuntimeError.
    with file.open("wb") as stream:
        torch.save(values, stream)


def _missing(path: Path) -> str:
    return next((name for name in (_MODEL, _OPTIMIZER, _METADATA) if not (path / name).is_file()), "")


def _load(file: Path) -> dict[str, Any]:
    try:
        # A pickle may run code as it is read; weights_only refuses to.
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{file} holds more than tensors and plain values, which may be code, and is not loaded: {error}"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read {file}: {error}; delete {file.parent}, or name another checkpoint"
        ) from error
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{file} holds a {type(loaded).__name__}, not the values of a checkpoint by name")
    return loaded
