"""`StorageSettings`, the table `[storage]`: how to reach object stores, and where copies of what lies there are."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from rollstream.schemas.addresses import checked_location

Location = Annotated[str, AfterValidator(checked_location), Field(json_schema_extra={"writeOnly": True})]
"""A place for files, see `checked_location`. Errors don't show it: somebody may have put a key into it."""


class StorageSettings(BaseModel):
    """How to reach an object store, for `weight_store` and `checkpoints` that begin with s3://, gs:// or az://."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Options of the store by obstore's names, such as endpoint, region, access_key_id and "
        "secret_access_key; those that are not set come from the variables that the cloud's own tools read, such as "
        "AWS_ACCESS_KEY_ID",
    )
    allow_http: bool = Field(
        default=False,
        description="Talk to an endpoint without TLS; keys are never sent, but what is stored can be read and changed "
        "on the way",
    )
    timeout_seconds: float = Field(
        default=30.0, gt=0, le=3600, description="How long an answer to one request may take"
    )
    outage_seconds: float = Field(
        default=60.0,
        ge=0,
        le=86400,
        description="How long a request is repeated while the store does not answer or is broken",
    )
    cache: Path = Field(
        default=Path("storage-cache"),
        description="Directory for copies of what was read, and for files until they are uploaded; processes of one "
        "machine may share it",
    )
    cache_bytes: int = Field(
        default=100 * 2**30,
        ge=2**20,
        description="Most bytes of copies of one store; the one used longest ago goes first, never one that serves",
    )
