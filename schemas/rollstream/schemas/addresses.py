"""Addresses of servers and of places for files: checked without being shown, and shown without a password."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

# Up to the last @, since a password may hold one; the query of a Redis URL may hold a password too.
_BEFORE_HOST: Final = re.compile(r"^([A-Za-z0-9_+.-]*://)?.*@", re.DOTALL)
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_LONGEST_LOCATION: Final = 1024
_WITH_CREDENTIALS: Final = re.compile(r":.*@|:/.*\?", re.DOTALL)
_PLAIN: Final = re.compile(r"[\w .,+-]{0,60}")
_SERVER: Final = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
BUCKET_SCHEMES: Final = ("s3", "gs", "az")


def without_credentials(address: str) -> str:
    """`address` without its user, password and query: `redis://user:secret@host/0` becomes `redis://***@host/0`."""
    return _QUERY.sub("?***", _BEFORE_HOST.sub(r"\1***@", address))


def secret_parts(address: str) -> list[str]:
    """The password of a checked address, and what its query holds, each as it is written and as it is meant."""
    parts = urlsplit(address)
    of_query = [text for pair in parse_qsl(parts.query, keep_blank_values=True) for text in pair]
    return [form for text in (parts.password or "", *of_query) for form in {text, unquote(text)} if form]


def may_hold_a_password(text: str) -> bool:
    """Whether it looks like an address with user, password or query. As `Path` a URL has only one slash."""
    return _WITH_CREDENTIALS.search(text) is not None


def quoted_if_plain(text: str) -> str:
    """A few plain words in quotes; of anything else, which may be an address or a key, only its length."""
    return repr(text) if _PLAIN.fullmatch(text) else f"a text of {len(text)} characters"


def without_addresses(text: str) -> str:
    """`text` without each word that may hold a password, for a message of a library that quotes what somebody typed."""
    return re.sub(r"\S+", lambda word: "***" if may_hold_a_password(word[0]) else word[0], text)


def checked_servers(servers: str) -> str:
    """`servers`, if they are host:port, separated by commas. Raises ValueError, which never shows them.

    Without a port clients would take one of their own, which network policies and people do not know.
    """
    found = [_SERVER.fullmatch(server.strip()) for server in servers.split(",")]
    if not all(server and 0 < int(server["port"]) < 2**16 for server in found):
        raise ValueError(
            "must be host:port of one or more brokers, separated by commas, each with its port from 1 to 65535, "
            "without protocol, user or password; those belong in [kafka.security]"
        )
    return servers


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


def checked_location(location: str) -> str:
    """`location`, if it names a place for files: a directory, file:///path, s3://bucket/prefix, gs:// or az://.

    Raises ValueError, which never shows it: somebody may have put a secret into it.
    """
    scheme, separator, rest = location.partition("://")
    if not location or len(location) > _LONGEST_LOCATION or not location.isprintable():
        raise ValueError(f"must have 1 to {_LONGEST_LOCATION} characters, all of them printable")
    if not separator:
        return location
    if scheme not in ("file", *BUCKET_SCHEMES):
        raise ValueError(f"must be a directory, or begin with file://, {', '.join(f'{s}://' for s in BUCKET_SCHEMES)}")
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError("must be like file:///path, with three slashes")
    elif "@" in rest or "?" in rest or "#" in rest or ".." in rest.split("/") or not rest.partition("/")[0]:
        raise ValueError(
            f"must be like {scheme}://bucket/prefix, without user, password, query or ..; keys belong in [storage] "
            "options"
        )
    return location


def is_bucket(location: str) -> bool:
    """Whether a checked location is in an object store, not on a disk."""
    return location.partition("://")[0] in BUCKET_SCHEMES and "://" in location


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
