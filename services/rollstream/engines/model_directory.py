"""Reads the config and the tensors' names and shapes of a model directory, without reading the tensors.

This is enough to refuse a weight version that does not fit before the running requests are paused.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollstream.schemas.errors import ConfigurationError, EngineError

Shapes = Mapping[str, tuple[int, ...]]
_HEAD = "lm_head.weight"
# vLLM pads the embedding and the output head to a multiple of it.
_VOCABULARY_PADDING = 64
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
# Tables that models compute when they are made. Old exports hold them, `save_pretrained` leaves them out, and vLLM's
# loader skips the same names.
_COMPUTED = ("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
# About the bound of the safetensors library, 100 MB.
_LARGEST_HEADER_BYTES = 100 * 2**20


def read_config(model_path: Path, option: str = "model_path") -> dict[str, Any]:
    """The model's `config.json`; raises `ConfigurationError`, which names the option that the path is of."""
    try:
        config: dict[str, Any] = json.loads((model_path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{model_path} has no readable config.json ({error}); set {option} to a directory with a model"
        ) from error
    return config


def longest_sequence(model_path: Path) -> int:
    """The most tokens that the model has positions for."""
    config = read_config(model_path)
    # Models that also take images keep the language model's part in text_config.
    return int(config.get("text_config", config)["max_position_embeddings"])


def refuse_undivided(model_path: Path, tensor_parallel_size: int) -> None:
    """Raise `ConfigurationError` unless vLLM can divide the model's heads and vocabulary over that many GPUs."""
    config = read_config(model_path)
    model = config.get("text_config", config)
    for name in _DIVIDED:
        number = model.get(name)
        # Fewer key-value heads than GPUs are copied, as many times to each.
        is_copied = name == "num_key_value_heads" and number and tensor_parallel_size % number == 0
        if number and number % tensor_parallel_size and not is_copied:
            raise ConfigurationError(
                f"tensor_parallel_size {tensor_parallel_size} does not divide {name} {number} of {model_path}; set a "
                "number that divides it"
            )
    num_tokens = int(model.get("vocab_size", 0))
    num_rows = -(-num_tokens // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    if num_rows % tensor_parallel_size or 0 < num_tokens <= num_rows - num_rows // tensor_parallel_size:
        raise ConfigurationError(
            f"tensor_parallel_size {tensor_parallel_size} does not divide vocab_size {num_tokens} of {model_path} "
            f"(vLLM pads it to {num_rows} rows) so that each GPU has tokens; set a smaller number that does"
        )


def stored_dtype(model_path: Path) -> str:
    """Element type that the model's config names, e.g. `float32`."""
    config = read_config(model_path)
    # Older versions of transformers wrote torch_dtype.
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def tensor_shapes(path: Path) -> Shapes:
    """Name and shape of every tensor in the directory's safetensors files; raises `EngineError` for broken files."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{path} has no .safetensors file: it is not a weight version")
    return {name: shape for file in files for name, shape in _header(file).items()}


def refuse_misfit(path: Path, found: Shapes, wanted: Shapes, *, is_tied: bool) -> None:
    """Raise `EngineError` unless both have the same tensors, but for a tied output head and computed tables."""
    optional = {_HEAD} if is_tied else set()
    learned, present = (
        {name: shape for name, shape in shapes.items() if not is_computed(name)} for shapes in (wanted, found)
    )
    missing = sorted(learned.keys() - present.keys() - optional)
    strange = sorted(present.keys() - learned.keys() - optional)
    changed = sorted(name for name in learned.keys() & present.keys() if learned[name] != present[name])
    if missing or strange or changed:
        raise EngineError(
            f"{path} does not fit the running model: {len(missing)} tensors missing {missing[:3]}, "
            f"{len(strange)} unknown {strange[:3]}, {len(changed)} of another shape {changed[:3]}"
        )


def is_computed(name: str) -> bool:
    """Whether this tensor is a table that the model computes by itself, so that files may lack it."""
    return name.endswith(_COMPUTED)


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a file's header. Format: 8 bytes length, JSON of that length, then the tensors without gaps.

    See the README of safetensors. A file that is cut off or too long raises `EngineError`.
    """
    try:
        num_bytes = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(num_bytes, _LARGEST_HEADER_BYTES):
                raise EngineError(f"{file}: a header of {length} bytes does not fit into {num_bytes} bytes")
            tensors = json.loads(stream.read(length))
    except (OSError, struct.error, ValueError) as error:
        raise EngineError(f"{file} is not a readable safetensors file: {error}") from error
    tensors.pop("__metadata__", None)
    end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    if num_bytes != end:
        raise EngineError(f"{file} has {num_bytes} bytes, its header describes {end}")
    return {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}
