"""The directory of a model that is named by its path, or by its name on the Hugging Face hub."""

import json
from pathlib import Path
from typing import Final

from rollstream.schemas.errors import ConfigurationError

# What `transformers` reads; no code, which a model's repository may hold too.
_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def model_directory(model: str) -> Path:
    """The directory of `model`. A name that is no directory is looked up on the hub, and its weights are fetched.

    Raises `ConfigurationError` if there are none, or if they need code of their own.
    """
    path = Path(model)
    if not path.is_dir():
        path = _fetched(model)
    if _needs_own_code(path):
        raise ConfigurationError(
            f"{path} needs Python files of its own, which are never run here: start a vLLM server with "
            "--trust-remote-code, and name the server instead"
        )
    return path


def _fetched(model: str) -> Path:
    if not _is_hub_name(model):
        raise ConfigurationError(f"model {model!r} is no directory: name one with config, weights and tokenizer")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"model {model!r} is no directory, and the Hugging Face hub does not give it: {why}; name a directory with "
            "config, weights and tokenizer, or a server that has the model"
        ) from error


def _needs_own_code(model: Path) -> bool:
    """Whether the model's configuration names Python files beside the weights."""
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("auto_map"))


def _is_hub_name(model: str) -> bool:
    parts = model.split("/")
    return len(parts) <= 2 and all(part and not part.startswith((".", "~")) for part in parts)
