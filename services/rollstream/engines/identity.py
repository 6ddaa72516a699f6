"""Which tokenizer and chat template a model directory has, as hashes that generator and trainer compare."""

import hashlib
import json
from pathlib import Path

# The first that exist decide; tokenizer_config.json changes with the library that wrote it.
_FAST = ("tokenizer.json",)
_SLOW = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model")


def tokenizer_sha256(model_path: Path) -> str:
    """Hash of the tokenizer's vocabulary files; a directory without any has the hash of nothing."""
    present = [model_path / name for name in _FAST if (model_path / name).is_file()]
    present = present or [model_path / name for name in _SLOW if (model_path / name).is_file()]
    digest = hashlib.sha256()
    for file in present:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def chat_template_sha256(model_path: Path) -> str:
    """Hash of the chat template's text, wherever the directory keeps it; without one the hash of nothing."""
    return hashlib.sha256(_chat_template(model_path).encode()).hexdigest()


def _chat_template(model_path: Path) -> str:
    if (model_path / "chat_template.jinja").is_file():
        return (model_path / "chat_template.jinja").read_text()
    if not (model_path / "tokenizer_config.json").is_file():
        return ""
    template = json.loads((model_path / "tokenizer_config.json").read_text()).get("chat_template") or ""
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
