"""A URL that may hold a password, as settings have it: nothing that prints it shows user, password or query."""

from typing import Annotated

from pydantic import PlainSerializer, SecretStr

from rollstream.schemas.addresses import without_credentials


class SecretUrl(SecretStr):
    """`str()`, `repr()` and JSON show `redis://***@host/0`; `get_secret_value` gives all of it."""

    def _display(self) -> str:
        return without_credentials(self.get_secret_value())


Address = Annotated[SecretUrl, PlainSerializer(str, when_used="json")]
"""The type of such a setting."""


def revealed(address: SecretStr | None) -> str | None:
    """The whole address, for the client that connects to it."""
    return None if address is None else address.get_secret_value()
