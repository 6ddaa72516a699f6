"""Hashes of a model directory's tokenizer and chat template, which generator and trainer compare."""

import hashlib
import json
from pathlib import Path

# The slow tokenizer's files count only without a fast one. tokenizer_config.json does not count: it changes with the
# version of the library that wrote it.
_FAST = ("tokenizer.json",)
_SLOW = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model")


def tokenizer_sha256(model_path: Path) -> str:
    """Hash of the tokenizer's vocabulary files; the hash of no bytes if the directory has none."""
    present = [model_path / name for name in _FAST if (model_path / name).is_file()]
    present = present or [model_path / name for name in _SLOW if (model_path / name).is_file()]
    digest = hashlib.sha256()
    for file in present:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def chat_template_sha256(model_path: Path) -> str:
    """Hash of the chat template's text, from whichever file has it; the hash of no bytes if there is none."""
    return hashlib.sha256(_chat_template(model_path).encode()).hexdigest()


def _chat_template(model_path: Path) -> str:
    if (model_path / "chat_template.jinja").is_file():
        return (model_path / "chat_template.jinja").read_text()
    if not (model_path / "tokenizer_config.json").is_file():
        return ""
    template = json.loads((model_path / "tokenizer_config.json").read_text()).get("chat_template") or ""
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
