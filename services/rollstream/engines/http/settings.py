"""Settings of the engine `openai_http`, TOML table `[generator.engine.http]`."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator

from rollstream.schemas.addresses import checked_address, may_hold_a_password

WeightUpdates = Literal["none", "vllm", "sglang"]
_Url = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
_OPENAI_PATH = "/v1"


class HttpSettings(BaseModel):
    """Which OpenAI-compatible servers answer, and how they are asked."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    urls: tuple[_Url, ...] = Field(
        default=(),
        max_length=64,
        description="Base URLs of 1 to 64 servers of the same model, with or without /v1: each call goes to the one "
        "that answers the fewest",
    )
    model: str = Field(default="", max_length=1024, description="Name under which the servers know the model")
    api_key: SecretStr | None = Field(
        default=None, description="Sent as a bearer token; any text where the servers ask for none"
    )
    api: Literal["chat", "completions"] = Field(
        default="chat",
        description="Route of text prompts: chat keeps roles and tools, completions takes one message as plain text",
    )
    max_connections: int = Field(
        default=128,
        ge=1,
        le=65536,
        json_schema_extra={"unit": "requests"},
        description="Most requests that run side by side, of all servers together; others wait",
    )
    most_per_server: int = Field(
        default=65536,
        ge=1,
        le=65536,
        json_schema_extra={"unit": "requests"},
        description="Most requests that run side by side at one server; others wait, also where another server is gone",
    )
    request_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86400,
        description="Deadline of one model call from when it runs, with its repetitions and pauses, seconds. It ends "
        "at once if every server asks to wait longer",
    )
    ready_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="How long a start waits until a server is ready, and an update until it has loaded, seconds",
    )
    max_tries: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Tries at one call that a server broke off, could not answer, or answered with what can't be read. "
        "429 is waited for, up to the deadline, and not counted",
    )
    retry_seconds: float = Field(
        default=0.5,
        ge=0,
        le=3600,
        description="Pause before a call is first repeated, and rest of a server that can't be reached, seconds. It "
        "doubles each time, up to 30 s or itself, and comes from half of it on by chance",
    )
    tokenizer_path: Path | None = Field(
        default=None,
        description="Directory with the model's tokenizer: prompts are sent as token ids, and answers have token ids "
        "and logprobs, which training needs and vLLM gives. Default: text only, which never trains",
    )
    weight_updates: WeightUpdates = Field(
        default="none",
        description="How the servers load new weights, by routes that read a version's files at the path where this "
        "process has them: vllm (servers with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode processed_logprobs) or "
        "sglang. Each server then belongs to one generator. none is for servers whose weights stay",
    )

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            checked_address(url, "http", "https")
            if may_hold_a_password(url) or urlsplit(url).fragment:
                raise ValueError("each must be like http://host:port, without user, password or query; use api_key")
        roots = [server_root(url) for url in urls]
        if len(set(roots)) < len(roots):
            raise ValueError("names a server twice: leave one out, so that the others get their share")
        return urls


def server_root(url: str) -> str:
    """The server's address without `/v1`: health and weight routes are there, the OpenAI routes below `/v1`."""
    return url.rstrip("/").removesuffix(_OPENAI_PATH).rstrip("/")
