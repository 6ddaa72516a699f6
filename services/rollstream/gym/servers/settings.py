"""Settings of the servers that `ng_run` starts, under the names that Gym's configurations have.

Keys that only describe a server are passed over, as Gym does. Every other key is a setting, or is refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, StringConstraints, model_validator

from rollstream.http.keys import is_loopback
from rollstream.process.settings.errors import shown
from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.addresses import checked_address
from rollstream.schemas.bounds import MAX_TURNS

_Text = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
ReverifyMode = Literal["stateless", "unsupported", "unknown"]
_MAX_URLS: Final = 64
DESCRIBING: Final = frozenset(("domain", "datasets", "license", "verified", "verified_url", "description", "value"))
FIXED: Final[Mapping[str, tuple[Any, str]]] = {
    "uses_reasoning_parser": (True, "thoughts that the API gives apart stay apart"),
    "replace_developer_role_with_system": (False, "roles are passed on as they are"),
    "default_headers": ({}, "a call has no header beside its key"),
    "openai_default_headers": ({}, "a call has no header beside its key"),
    "skip_verification": (False, "each rollout is verified"),
    "num_workers": (1, "each server is one process"),
}
"""Settings of Gym that have one value here, or null, and what it means. Any other value is refused."""


class ServerSettings(BaseModel):
    """What every server has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    entrypoint: _Text = Field(description="What runs")
    host: str = Field(default="127.0.0.1", max_length=253, description="Where it listens; this machine alone")
    port: int | None = Field(default=None, ge=1, le=65535, description="Default: a free one")

    @classmethod
    def names(cls) -> set[str]:
        """The keys that it takes."""
        aliases = [field.validation_alias for field in cls.model_fields.values()]
        others = {str(name) for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices}
        return others | cls.model_fields.keys() | DESCRIBING | FIXED.keys()

    @model_validator(mode="before")
    @classmethod
    def _is_as_here(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, (value, why) in FIXED.items():
            if given.get(name) not in (None, value):
                raise ValueError(
                    f"{name} is {shown(given[name])}, it must be {str(value).lower()}: {why}; leave it out"
                )
        return {name: value for name, value in given.items() if name not in DESCRIBING and name not in FIXED}

    @model_validator(mode="after")
    def _is_here(self) -> Self:
        if not is_loopback(self.host):
            raise ValueError("host can be reached from other machines, and these servers have no keys: set 127.0.0.1")
        return self


class Place(ServerSettings):
    """Settings of a program of your own, which reads the others itself."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _is_as_here(cls, given: Any) -> Any:
        return given


class Reference(BaseModel):
    """Another server of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    name: str


class ModelSettings(ServerSettings):
    """A model server: an OpenAI-compatible API behind Gym's routes."""

    base_url: tuple[_Text, ...] = Field(
        min_length=1,
        max_length=_MAX_URLS,
        validation_alias=AliasChoices("openai_base_url", "base_url"),
        description="http://host:port/v1 of the API; of several each call takes the next",
    )
    api_key: SecretStr = Field(
        validation_alias=AliasChoices("openai_api_key", "api_key"), description="Its key, in each call"
    )
    model: _Text = Field(validation_alias=AliasChoices("openai_model", "model"), description="The model's name there")
    extra_body: Mapping[str, Any] | None = Field(default=None, description="Fields that are set in each call")
    chat_template_kwargs: Mapping[str, Any] | None = Field(default=None, description="Arguments of the chat template")
    return_token_id_information: bool | None = Field(
        default=None, description="Ask vLLM for the token ids and logprobs of each answer; of vllm_model alone"
    )
    call_seconds: float = Field(default=600.0, gt=0, le=86400, description="Deadline of one call, with repetitions")
    max_tries: int = Field(default=3, ge=1, le=100, description="Tries of one call that brings no answer")

    @model_validator(mode="before")
    @classmethod
    def _one_url_is_a_list(cls, given: Any) -> Any:
        if isinstance(given, dict):
            urls = {key: [given[key]] for key in ("base_url", "openai_base_url") if isinstance(given.get(key), str)}
            return {**given, **urls}
        return given

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        for url in self.base_url:
            checked_address(url, "http", "https")
        return self


class AgentSettings(ServerSettings):
    """The simple agent: the model calls tools until it answers without a call, and the tools' server verifies."""

    resources_server: Reference = Field(description="Whose tools the model calls")
    model_server: Reference = Field(description="Whose model it is")
    max_steps: int | None = Field(default=None, ge=1, le=MAX_TURNS, description="Most calls of the model; null: 128")
    run_seconds: float = Field(default=3600.0, gt=0, le=7 * 86400, description="Deadline of one rollout")
    tool_seconds: float = Field(default=60.0, gt=0, le=3600, description="Deadline of one call of a tool")
    open_seconds: float = Field(default=600.0, gt=0, le=3600, description="Deadline of opening a session")
    verify_seconds: float = Field(default=600.0, gt=0, le=86400, description="Deadline of verifying a rollout")


class ResourcesSettings(ServerSettings):
    """A resources server: a class whose public methods are tools, with one object and one process a session."""

    options: Mapping[str, SecretStr] = Field(default_factory=dict, max_length=128, description="The class's arguments")
    reverify_mode: ReverifyMode = Field(
        default="unknown", description="stateless: a verdict needs no session, so that stored rollouts can be verified"
    )
    max_sessions: int = Field(default=1024, ge=1, le=65536, description="Most open at once; above, the answer is 503")
    session_seconds: float = Field(
        default=3600.0, gt=0, le=7 * 86400, description="A session that nobody uses for so long is closed"
    )
    call_seconds: float = Field(default=60.0, gt=0, le=3600, description="Deadline of one call, and of opening")
    verify_seconds: float = Field(default=600.0, gt=0, le=86400, description="Deadline of one verification")

    def tools(self) -> ToolSettings:
        """Its class, as tools of kind `python`."""
        return ToolSettings(
            kind="python",
            path=self.entrypoint,
            options=dict(self.options),
            max_sessions=self.max_sessions,
            call_seconds=self.call_seconds,
            open_seconds=self.call_seconds,
            verify_seconds=self.verify_seconds,
            # What `verify` repeats of a row may be as large as the row.
            max_answer_bytes=2**26,
        )
