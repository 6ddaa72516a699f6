"""Model directories that transformers and vLLM load: read at the start, written for every weight version."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rollstream.engines.model_directory import read_config
from rollstream.schemas.errors import ConfigurationError

_TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "chat_template*"
)  # fmt: skip


def load_model(path: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Any:
    """The model at `path` with parameters in `dtype`, without dropout, on `device`."""
    transformers_logging.disable_progress_bar()
    read_config(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


def resolve_device(name: Literal["auto", "cpu", "cuda"], threads: int | None) -> torch.device:
    """The device that `name` means here; also sets torch's thread count. Raises `ConfigurationError` without a GPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigurationError("device is 'cuda' but torch sees no GPU: set device = \"cpu\" or install its driver")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def save_model(
    model: PreTrainedModel,
    path: Path,
    *,
    dtype: torch.dtype,
    tokenizer_from: Path | None,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Write weights as safetensors in `dtype`, config, and the tokenizer files of `tokenizer_from` into `path`.

    `state`: the whole weights of a model that holds only a part of them. Raises `OSError`, as for a full disk.
    """
    path.mkdir(parents=True, exist_ok=True)
    if state is None and dtype is model.dtype:
        _save_pretrained(model, path)
    else:
        _save_pretrained(model, path, state_dict=_cast(state or model.state_dict(), dtype))
        _name_dtype(path / "config.json", dtype)
    if tokenizer_from is None:
        return
    for pattern in _TOKENIZER_FILES:
        for file in tokenizer_from.glob(pattern):
            shutil.copyfile(file, path / file.name)


def _save_pretrained(model: PreTrainedModel, path: Path, **weights: Any) -> None:
    try:
        model.save_pretrained(path, **weights)
    except SafetensorError as error:
        # It tells of a full disk in words alone.
        found = re.search(r"\(os error ([0-9]+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def _cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """`state` in `dtype`; tensors that share memory still do, so that a tied output head is written once."""
    by_address: dict[int, Tensor] = {}
    return {name: by_address.setdefault(tensor.data_ptr(), tensor.to(dtype)) for name, tensor in state.items()}


def _name_dtype(config: Path, dtype: torch.dtype) -> None:
    """Write `dtype` into the config: engines load in it, and transformers wrote that of the parameters in memory."""
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n")
