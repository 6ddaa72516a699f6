"""Who may call an HTTP server: keys of clients, and whose key a request carries."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints

from rollstream.schemas.record import Name

LEAST_KEY_CHARACTERS: Final = 24
"""Of a key where strangers reach the server."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

ClientName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class ClientKey(BaseModel):
    """What the holder of a key may do. The key itself is in no record and in no message."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    key: SecretStr = Field(description="The key, as `Authorization: Bearer` or `x-api-key` carries it")
    tenant: Name = Field(
        min_length=1, description="Whose client it is; feedback counts for answers of its tenant alone"
    )
    environment: Name = Field(default="", description="Environment whose rubric scores the answers; empty: none")
    may_train: bool = Field(default=False, description="Whether the client consents to training on what it is answered")
    sampling: Literal["as_asked", "plain"] = Field(
        default="as_asked",
        description="as_asked: as each call says; plain: temperature 1 and nothing else, whatever it says, so that the "
        "answers of any client can train",
    )


OPEN: Final = ClientKey(key=SecretStr(""), tenant="local")
"""Who calls a server without keys."""
