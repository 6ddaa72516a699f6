"""Who may call an HTTP server: keys of clients, and whose key a request carries."""

import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints

from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.record import Name

LEAST_KEY_CHARACTERS: Final = 24
"""Of a key where strangers reach the server."""
CREDENTIALS: Final = (b"authorization", b"x-api-key")
"""The headers that carry a key."""
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Of a request: names in lower case."""

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
LOCAL: Final = "local"
"""Name of who calls a server without keys."""


class Keys:
    """The clients of a server that listens at `host`.

    Raises `ConfigurationError` if strangers could come in: without keys, with a short one, or with one of two holders.
    """

    def __init__(self, keys: Mapping[str, ClientKey], host: str) -> None:
        if not is_loopback(host):
            _refuse_weak(keys, host)
        _refuse_unusable(keys)
        self._holders = tuple((_digest(one.key.get_secret_value().encode()), name, one) for name, one in keys.items())

    def holder(self, headers: Headers) -> tuple[str, ClientKey] | None:
        """Whose key a request carries, by its name; None if it carries none, an unknown one, or two of a kind.

        Takes as long for a wrong key as for a right one.
        """
        if not self._holders:
            return LOCAL, OPEN
        shown = [(name, value) for name, value in headers if name in CREDENTIALS]
        if len({name for name, _ in shown}) < len(shown):
            return None
        digests = [_digest(_bare(name, value)) for name, value in shown]
        found = [(name, key) for known, name, key in self._holders if _is_among(known, digests)]
        return found[0] if len(found) == 1 else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_weak(keys: Mapping[str, ClientKey], host: str) -> None:
    if not keys:
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines and there are no keys: add a client under keys.NAME "
            'with key and tenant, or set host = "127.0.0.1"'
        )
    for name, one in keys.items():
        if (length := len(one.key.get_secret_value())) < LEAST_KEY_CHARACTERS:
            raise ConfigurationError(
                f"keys.{name}.key has {length} characters, at least {LEAST_KEY_CHARACTERS} where host {host!r} can be "
                "reached from other machines: make a longer one, such as by `openssl rand -hex 32`"
            )


def _refuse_unusable(keys: Mapping[str, ClientKey]) -> None:
    names: dict[str, str] = {}
    for name, one in keys.items():
        key = one.key.get_secret_value()
        if not key or not all("!" <= letter <= "~" for letter in key):
            raise ConfigurationError(
                f"keys.{name}.key is empty, or has a character that no header can carry: use letters and digits alone"
            )
        if key in names:
            raise ConfigurationError(f"keys.{name}.key is also that of keys.{names[key]}: give each client its own")
        names[key] = name


def _bare(name: bytes, value: bytes) -> bytes:
    """The key that a header carries."""
    if name != b"authorization":
        return value.strip()
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


def _is_among(known: bytes, digests: Iterable[bytes]) -> bool:
    # Not `any`: what is found must not end the comparison with the others.
    return sum(hmac.compare_digest(known, one) for one in digests) > 0
