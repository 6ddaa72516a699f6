"""Settings of the ingest server, TOML table `[ingest]`."""

from typing import ClassVar

from pydantic import Field

from rollstream.http.keys import ClientKey, ClientName
from rollstream.http.settings import GuardSettings
from rollstream.process.settings.base import StageSettings


class IngestSettings(StageSettings):
    """What one ingest server needs. Any number of them may run."""

    table: ClassVar[str] = "ingest"

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255, description="Address to serve at")
    port: int = Field(default=8001, ge=0, le=65535, description="Its port; 0 takes a free one")
    keys: dict[ClientName, ClientKey] = Field(
        default_factory=dict, max_length=1024, description="Clients by name; without any only this machine is served"
    )
    guard: GuardSettings = Field(default_factory=GuardSettings, description="Bounds of requests and connections")
    confirm_seconds: float = Field(
        default=10.0, gt=0, le=120, description="A request that the broker has not confirmed by then ends as 503"
    )
    idempotency_seconds: float = Field(
        default=86_400.0,
        ge=0,
        le=30 * 86_400,
        description="How long Redis remembers what was confirmed, so that the same request is not written again",
    )
