"""An S3 server in this process, as far as a weight store asks: list, put, get, head and delete. It can refuse."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from rollstream.process.settings.storage import StorageSettings

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
SKEWED = "The difference between the request time and the current time is too large."


class SmallS3(ThreadingHTTPServer):
    """`refusals`: so many of the next requests are answered by 403, -1: all. `refused` counts them.

    Only requests whose path contains `refused_paths` are refused.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.refusals = 0
        self.refused = 0
        self.refused_paths = ""

    def storage(self, cache: Path, outage_seconds: float) -> StorageSettings:
        """Settings that lead here."""
        options = {
            "endpoint": f"http://127.0.0.1:{self.server_address[1]}", "region": "us-east-1",
            "access_key_id": "test-access-key", "secret_access_key": "test-secret-key",
        }  # fmt: skip
        return StorageSettings(
            cache=cache,
            allow_http=True,
            outage_seconds=outage_seconds,
            options={name: SecretStr(value) for name, value in options.items()},
        )


class _Handler(BaseHTTPRequestHandler):
    server: SmallS3

    def parse_request(self) -> bool:
        """Whether the request is one to answer; what is refused is answered here."""
        if not super().parse_request():
            return False
        self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.server.refusals == 0 or self.server.refused_paths not in self.path:
            return True
        self.server.refusals -= 1
        self.server.refused += 1
        self._answer(
            403, f"{_HEAD}<Error><Code>RequestTimeTooSkewed</Code><Message>{SKEWED}</Message><X>y</X></Error>".encode()
        )
        return False

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            names = {name[len(prefix) :].partition("/")[0] for name in self.server.objects if name.startswith(prefix)}
            found = "".join(f"<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>" for name in names)
            self._answer(200, f"{_HEAD}<ListBucketResult>{found}</ListBucketResult>".encode())
        elif parts.path in self._named():
            self._answer(200, self._named()[parts.path])
        else:
            self._answer(404, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.server.objects[urlsplit(self.path).path.split("/", 2)[2]] = self.body
        self._answer(200, b"")

    def do_POST(self) -> None:
        keys = re.findall(r"<Key>(.*?)</Key>", self.body.decode())
        for key in keys:
            self.server.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"{_HEAD}<DeleteResult>{deleted}</DeleteResult>".encode())

    def _named(self) -> dict[str, bytes]:
        return {f"/bucket/{name}": content for name, content in self.server.objects.items()}

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(content)), "ETag": '"1"', "Last-Modified": "Mon, 23 Nov 2026 23:00:00 GMT",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a test's output is its own."""


@contextmanager
def a_small_s3() -> Iterator[SmallS3]:
    """The server, while the block runs; its bucket is `bucket`."""
    with SmallS3() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
