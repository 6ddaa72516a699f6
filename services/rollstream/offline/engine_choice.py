"""Engines of commands that name a model or servers by options instead of by a settings file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.errors import ConfigurationError

# What `transformers` reads; no code, which a model's repository may hold too.
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def server_engine(
    urls: Sequence[str], model: str, *, max_connections: int, api_key: SecretStr | None = None, **http: Any
) -> EngineSettings:
    """The engine that asks OpenAI-compatible servers; raises `ConfigurationError` for an address that is none."""
    try:
        settings = HttpSettings(urls=tuple(urls), model=model, max_connections=max_connections, api_key=api_key, **http)
        return EngineSettings.model_validate({"kind": "openai_http", "http": settings})
    except ValidationError as error:
        raise _explained(error, "the servers' addresses or the model's name") from error


def in_process_engine(model: str, *, max_num_seqs: int) -> EngineSettings:
    """The `transformers` engine on the weights of `model`, a directory or a name on the Hugging Face hub."""
    try:
        return EngineSettings(kind="transformers", model_path=model_directory(model), max_num_seqs=max_num_seqs)
    except ValidationError as error:
        raise _explained(error, "the engine's settings") from error


def model_directory(model: str) -> Path:
    """The directory of `model`. A name that is no directory is looked up on the hub, and its weights are fetched.

    Raises `ConfigurationError` if there are none.
    """
    path = Path(model)
    if path.is_dir():
        return path
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


def needs_own_code(model: Path) -> bool:
    """Whether the model's configuration names Python files beside the weights, which we never run."""
    try:
        config = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("auto_map"))


def described(engine: EngineSettings) -> dict[str, Any]:
    """What of an engine must be the same for a resume: which model answers, not where it runs."""
    if engine.kind == "openai_http":
        return {"engine": engine.kind, "model": engine.http.model, "api": engine.http.api}
    described = {"engine": engine.kind, "model": str(engine.model_path)}
    return {**described, **engine.scripted.model_dump(mode="json")} if engine.kind == "scripted" else described


def _is_hub_name(model: str) -> bool:
    parts = model.split("/")
    return len(parts) <= 2 and all(part and not part.startswith((".", "~")) for part in parts)


def _explained(error: ValidationError, what: str) -> ConfigurationError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return ConfigurationError(f"{what}: {place}{': ' * bool(place)}{first['msg'].removeprefix('Value error, ')}")
