"""Settings of a generator's HTTP endpoint, TOML table `[generator.serve]`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from rollstream.http.keys import ClientKey, ClientName
from rollstream.http.settings import GuardSettings


class ServeSettings(BaseModel):
    """Whether and how a generator answers clients over HTTP, and what is recorded of its answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    enabled: bool = Field(default=False, description="Answer clients over HTTP")
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255, description="Address to serve at")
    port: int = Field(default=8000, ge=0, le=65535, description="Its port; 0 takes a free one")
    model_name: str = Field(
        default="", max_length=255, description="What clients call the model; default: the run's `model`"
    )
    keys: dict[ClientName, ClientKey] = Field(
        default_factory=dict, max_length=1024, description="Clients by name; without any only this machine is served"
    )
    guard: GuardSettings = Field(default_factory=GuardSettings, description="Bounds of requests and connections")
    reserve: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra={"unit": "requests"},
        description="Of engine.max_num_seqs, how many training leaves to clients; default: an eighth, at least 1",
    )
    lend_after_seconds: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="After so long without a call training has the reserved places too, until the next call, seconds",
    )
    max_waiting: int = Field(
        default=256,
        ge=0,
        le=65_536,
        json_schema_extra={"unit": "calls"},
        description="Most calls that wait for the engine; above, the answer is 503 with Retry-After",
    )
    answer_seconds: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="A call that is not answered by then ends, seconds, its wait included: with what it has so far as "
        "cut off (`length`), or without any as 503",
    )
    when_client_leaves: Literal["abort", "finish"] = Field(
        default="abort", description="What becomes of an answer whose client leaves; what it has so far is recorded"
    )
    tool_call_parser: str | None = Field(
        default=None, max_length=255, description="vLLM's parser of tool calls, e.g. hermes; default: no tools"
    )
    subject_secret: SecretStr | None = Field(
        default=None,
        description="Key of the HMAC under which the id of a person is recorded; default: no ids are recorded",
    )
    hook: str | None = Field(
        default=None,
        max_length=1024,
        description="Function package.module.name that sees each record first, and says keep, text or drop",
    )
    spool: Path = Field(default=Path("spool"), description="Directory of answers that are not on Kafka yet")
    spool_bytes: int = Field(default=2**30, ge=2**20, description="Most bytes of it")
    when_spool_is_full: Literal["refuse", "unrecorded"] = Field(
        default="refuse", description="refuse: 503; unrecorded: answer all the same, counted and alerted"
    )
    drain_seconds: float = Field(
        default=60.0, ge=0, le=3600, description="After SIGTERM answers have so long to end, seconds"
    )
