"""The files that `[kafka.security]` names: certificates and keys. Errors of the clients do not say which is missing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from rollstream.schemas.errors import ConfigurationError

_FILES: Final = (
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"
)  # fmt: skip
_SEARCHED: Final = "probe"
"""With it librdkafka looks for the system's authorities by itself."""


def require_readable_files(security: Mapping[str, SecretStr]) -> None:
    """Raises `ConfigurationError`, which names each file that can't be read, by its setting."""
    if problems := list(unreadable_files(security)):
        raise ConfigurationError(f"[kafka.security] {'; '.join(problems)}")


def unreadable_files(security: Mapping[str, SecretStr]) -> Iterator[str]:
    """One sentence for each file that can't be read."""
    for name in _FILES:
        given = security[name].get_secret_value() if name in security else ""
        if given and not (name == "ssl.ca.location" and given == _SEARCHED):
            try:
                # Authorities may be the files of a directory.
                if not (name == "ssl.ca.location" and Path(given).is_dir()):
                    Path(given).open("rb").close()
            except (OSError, ValueError) as error:
                yield f"{name}: {_shown(given)} can't be read ({_why(error)}); name a file that this process may read"


def _shown(given: str) -> str:
    """The path; anything else may be a key or password in the wrong place."""
    is_path = given.startswith(("/", "./", "../", "~")) and given.isprintable()
    return given if is_path else f"a text of {len(given)} characters, which is no absolute path,"


def _why(error: OSError | ValueError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it can be no path"
