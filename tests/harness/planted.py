"""Secrets that tests plant, and the search for them in what a program says, in any form that they could have there."""

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from urllib.parse import quote

BEGINNING = 12
"""So many characters of a secret are a leak too."""
_AROUND = 60
# One writer of texts may have quoted what another one has quoted.
_BARE = "within quotes"
_QUOTES = str.maketrans("", "", "\\\"'")


def a_secret() -> str:
    """One that stands nowhere by accident, with characters that each writer of texts writes in its own way."""
    return f"{secrets.token_hex(4)}+\"'{secrets.token_hex(8)}&{secrets.token_hex(4)}"


def a_plain_secret() -> str:
    """The same of letters and digits, as keys often are."""
    return secrets.token_hex(16)


def a_numeric_secret() -> int:
    """Of 18 digits: TOML and JSON have it without quotes."""
    return secrets.randbelow(9 * 10**17) + 10**17


def a_private_key() -> str:
    """PEM text that is no key, but looks like one."""
    lines = (base64.b64encode(secrets.token_bytes(48)).decode() for _ in range(25))
    return "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""])


def in_url(secret: str) -> str:
    """As it stands between user and host."""
    return quote(secret, safe="")


def leaks(planted: Mapping[str, str], text: str) -> list[str]:
    """Where in `text` one of the secrets is, by what it is for."""
    bare = text.translate(_QUOTES)
    return [
        f"{name}, {form}: …{within[max(0, at - _AROUND) : at]}<here>"
        for name, secret in planted.items()
        for line in secret.splitlines()
        if not line.startswith("-----")
        for form, written in _forms(line)
        for within in ((bare if form == _BARE else text),)
        if (at := within.find(written)) >= 0
    ]


def assert_absent(planted: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """No secret is in any of the outputs, and each output says something."""
    assert outputs
    assert [where for where, text in outputs.items() if not text.strip()] == []
    found = {where: leaks(planted, text) for where, text in outputs.items()}
    assert {where: leak for where, leak in found.items() if leak} == {}


def _forms(secret: str) -> Iterator[tuple[str, str]]:
    beginning = secret[:BEGINNING]
    yield "as it is", secret
    yield "its beginning", beginning
    yield _BARE, beginning.translate(_QUOTES)
    yield "in a URL", quote(beginning, safe="")
    yield "repr", repr(beginning)[1:-1]
    yield "JSON", json.dumps(beginning)[1:-1]
    yield "hexadecimal", beginning.encode().hex()
    for place in range(3):
        yield "base64", _in_base64(beginning, place)


def _in_base64(text: str, place: int) -> str:
    """What is always there when `text` is encoded as a part of something: three bytes become four characters."""
    encoded = base64.b64encode(b"\0" * place + text.encode()).decode()
    whole = (place + len(text)) * 8 // 6
    return encoded[(0, 2, 3)[place] : whole]
