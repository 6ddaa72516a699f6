"""A client that sends bytes as it is told, whatever they are, and reads what comes back."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """An answer in parts. `status` 0: the server said nothing before it closed."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection to a server of this machine, until the block ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=READ_SECONDS) as connection:
        yield connection


def a_request(
    path: str = "/echo",
    body: bytes = b"",
    *,
    key: str = "",
    method: str = "POST",
    headers: dict[str, str] | None = None,
) -> bytes:
    """The bytes of a request; without a `key` it carries none."""
    given = {"host": "here", "content-length": str(len(body)), **(headers or {})}
    if key:
        given["authorization"] = f"Bearer {key}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def exchanged(port: int, sent: bytes) -> RawAnswer:
    """What the server answers to these bytes, of which it may not take all."""
    with connected(port) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> RawAnswer:
    """The next answer; its body as far as Content-Length says, or to the end of the connection."""
    received = b""
    while b"\r\n\r\n" not in received and (more := _more(connection)):
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    if not head:
        return RawAnswer(status=0, headers={}, body=b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n") and (more := _more(connection)):
            body += more
        body = _unchunked(body)
    while len(body) < int(headers.get("content-length", 0)) and (more := _more(connection)):
        body += more
    return RawAnswer(status=int(first.split(" ")[1]), headers=headers, body=body)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; False if it sends anything before."""
    return _more(connection) == b""


def _more(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except ConnectionError:
        return b""


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return found
