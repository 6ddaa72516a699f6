"""The engine that the options of a command name: servers, or a model in this process."""

import json
import os
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.settings import EngineSettings
from rollstream.offline.options import CollectOptions
from rollstream.process.masking import SECRETS
from rollstream.schemas.errors import ConfigurationError

# What `transformers` reads; no code, which a model's repository may hold too.
_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
_LONGEST_CALL_SECONDS: Final = 86400.0
_LITELLM_KEY: Final = "LITELLM_API_KEY"


def named_engine(options: CollectOptions, **http: float) -> EngineSettings:
    """The engine of `--model`, with `--url` on servers, else in this process. `http`: what differs for servers.

    Raises `ConfigurationError` for an address that is none, and for a model that is not found.
    """
    model = options.model or ""
    try:
        if not options.url:
            return EngineSettings(
                kind="transformers", model_path=model_directory(model), max_num_seqs=options.concurrency
            )
        values: dict[str, Any] = {"request_seconds": min(options.deadline, _LONGEST_CALL_SECONDS), **http}
        key = _key(options.api_key_variable)
        servers = HttpSettings(
            urls=options.url, model=model, max_connections=options.concurrency, api_key=key, **values
        )
        return EngineSettings.model_validate({"kind": "openai_http", "http": servers})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        why = f"{place}{': ' * bool(place)}{first['msg'].removeprefix('Value error, ')}"
        raise ConfigurationError(f"the servers' addresses or the model's name: {why}") from error


def litellm_variable() -> str | None:
    """The variable with the key, for the presets, which name none; None if it holds none."""
    return _LITELLM_KEY if os.environ.get(_LITELLM_KEY) else None


def _key(variable: str | None) -> SecretStr:
    """The key that this environment variable holds, which no message shows; without a variable any.

    Servers without keys pass over it; LiteLLM answers 500 to a request without any, as if it were not ready.
    """
    key = "dummy" if variable is None else os.environ.get(variable)
    if not key:
        raise ConfigurationError(
            f"--api-key-variable {variable}: there is no such environment variable, or it is empty"
        )
    if variable is not None:
        SECRETS.add([key])
    return SecretStr(key)


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
