"""`TracingSettings`, the table `[tracing]`: where the spans of records go, and how many."""

import re
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from rollstream.schemas.addresses import checked_address, may_hold_a_password

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_TRACES: Final = "/v1/traces"


class TracingSettings(BaseModel):
    """Spans of each record's way through the stages, exported by OTLP over HTTP; set the same for all stages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    endpoint: str = Field(
        default="",
        json_schema_extra={"writeOnly": True},
        description="OTLP collector, http:// or https://; /v1/traces is added to its path. Empty: no spans are made, "
        "and records keep the trace context that they came with",
    )
    sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Part of the traces that is exported, 0 to 1, chosen by the trace id alone, whatever a record's "
        "headers ask for",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="HTTP headers for the collector, such as authorization; with an endpoint, whatever is not set here "
        "comes from OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_HEADERS",
    )
    ca_file: Path | None = Field(
        default=None, description="PEM file of the authority that signed the collector's certificate"
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=60, description="How long one batch of spans is tried; then it is dropped"
    )
    max_queued_spans: int = Field(
        default=4096,
        ge=1,
        le=100_000,
        json_schema_extra={"unit": "spans"},
        description="Spans that wait for the collector, of some kB each; above, spans are dropped",
    )
    max_spans_per_second: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        json_schema_extra={"unit": "spans"},
        description="Most spans that a process exports in a second; above, spans are dropped: lower sample_ratio",
    )

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        if not value:
            return value
        if may_hold_a_password(checked_address(value, "http", "https")):
            raise ValueError("must have no user, password or query: keys belong in [tracing.headers]")
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        # The HTTP client would show a value that it refuses.
        for name, secret in value.items():
            text = secret.get_secret_value()
            if not _NAME.fullmatch(name):
                raise ValueError("the names must be names of HTTP headers")
            if not text.isascii() or not text.isprintable() or text != text.strip():
                raise ValueError(f"{name}: must be printable ASCII without spaces at its ends")
        return value

    @property
    def is_on(self) -> bool:
        return bool(self.endpoint)

    @property
    def url(self) -> str:
        base = self.endpoint.rstrip("/")
        return base if base.endswith(_TRACES) else base + _TRACES
