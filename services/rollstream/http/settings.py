"""Bounds of an HTTP server that strangers reach."""

from pydantic import BaseModel, ConfigDict, Field


class GuardSettings(BaseModel):
    """What a connection, a request and a key may take. What is beyond is refused, or closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    header_seconds: float = Field(
        default=5.0, gt=0, le=600, description="A connection that has not sent a request's headers by then is closed"
    )
    body_seconds: float = Field(default=10.0, gt=0, le=600, description="One that has not sent the body by then, too")
    header_bytes: int = Field(default=2**15, ge=2**10, le=2**20, description="Most bytes of a request's headers")
    body_bytes: int = Field(default=2**22, ge=2**10, le=2**28, description="Most bytes of a request's body")
    stall_seconds: float = Field(
        default=30.0, gt=0, le=3600, description="A client that takes nothing of its answer for so long is cut off"
    )
    bodies_bytes: int = Field(
        default=2**28,
        ge=2**10,
        le=2**40,
        description="Most bytes of the bodies of all calls in work; above, the answer is 503 with Retry-After",
    )
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        json_schema_extra={"unit": "connections"},
        description="Most at once; above, those are closed first that have not sent the headers of a request yet",
    )
    max_calls: int = Field(
        default=512,
        ge=1,
        le=65_536,
        json_schema_extra={"unit": "calls"},
        description="Most calls in work at once; above, the answer is 503 with Retry-After",
    )
    calls_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=10**7,
        json_schema_extra={"unit": "calls"},
        description="Most calls of one key in a minute, on average, and at once; above, the answer is 429 with "
        "Retry-After; default: no bound",
    )
