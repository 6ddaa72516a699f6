"""The engine that the options of a command name: servers, or a model in this process."""

import os
from typing import Any, Final

from pydantic import SecretStr, ValidationError

from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.model_names import model_directory
from rollstream.engines.settings import EngineSettings
from rollstream.offline.options import CollectOptions
from rollstream.process.masking import SECRETS
from rollstream.schemas.errors import ConfigurationError

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
