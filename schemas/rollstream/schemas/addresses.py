"""Addresses that may hold a password: checked without being shown, and shown without the password."""

import re
from typing import Final
from urllib.parse import urlsplit

# Up to the last @, since a password may hold one; the query of a Redis URL may hold a password too.
_BEFORE_HOST: Final = re.compile(r"^([A-Za-z0-9_+.-]*://)?.*@", re.DOTALL)
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)


def without_credentials(address: str) -> str:
    """`address` without its user, password and query: `redis://user:secret@host/0` becomes `redis://***@host/0`."""
    return _QUERY.sub("?***", _BEFORE_HOST.sub(r"\1***@", address))


def checked_address(address: str, *schemes: str) -> str:
    """`address`, if clients take it apart as we do. Raises ValueError, which never shows it."""
    begins = tuple(f"{scheme}://" for scheme in schemes)
    if not address.startswith(begins):
        raise ValueError(f"must begin with {' or '.join(begins)}")
    if not _is_whole(address):
        raise ValueError(
            f"must be like {begins[0]}user:password@host:port; in a password / ? # @ : % are written as "
            "%2F %3F %23 %40 %3A %25"
        )
    return address


def _is_whole(address: str) -> bool:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # no number, or above 65535
        return False
    # An @ after the host: the password holds a character that ends the part with the host.
    is_cut = "@" in f"{parts.path}{parts.query}{parts.fragment}"
    has_place = bool(parts.path if parts.scheme == "unix" else parts.hostname) and port != 0
    return has_place and not is_cut
