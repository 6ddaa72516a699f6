"""`StorageSettings`, the table `[storage]`: how to reach object stores, and where copies of what lies there are."""

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator

from rollstream.schemas.addresses import checked_address, checked_location, may_hold_a_password

Location = Annotated[str, AfterValidator(checked_location), Field(json_schema_extra={"writeOnly": True})]
"""A place for files, see `checked_location`. Errors don't show it: somebody may have put a key into it."""
_ADDRESS: Final = re.compile(r"(?<!use_fabric_)(endpoint(_url)?(_s3)?|base_url)$", re.IGNORECASE)
_BUCKET: Final = re.compile(r"(bucket|container)(_name)?$", re.IGNORECASE)


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

    @field_validator("options")
    @classmethod
    def _checked_options(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, secret in value.items():
            _check_option(name, secret.get_secret_value())
        return value


def is_address(option: str) -> bool:
    """Whether this option of a store is an address, which holds no key: it is checked, and shown in errors."""
    return _ADDRESS.search(option) is not None


def _check_option(name: str, value: str) -> None:
    """The library shows addresses in its errors, and some values end the process in its own way."""
    if _BUCKET.search(name):
        raise ValueError(f"{name} is no option: the location says it, as in s3://bucket/prefix")
    if not (value.isascii() and value.isprintable()) and not name.lower().endswith("service_account_key"):
        raise ValueError(f"{name} must be of printable ASCII characters, in one line")
    if not is_address(name):
        return
    try:
        checked_address(value, "http", "https")
    except ValueError:
        raise ValueError(f"{name} must be like https://host:port") from None
    if may_hold_a_password(value):
        raise ValueError(f"{name} must hold no user, password or query: keys are options of their own")
