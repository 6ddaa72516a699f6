"""An S3 server in this process, as far as a weight store asks: list, put, get, head and delete. It can refuse."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from rollstream.process.settings.storage import StorageSettings
from tests.harness.threads import Answering, served

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


class _Handler(Answering, BaseHTTPRequestHandler):
    server: SmallS3

    def parse_request(self) -> bool:
        """Whether the request is one to answer; what is refused is answered here."""
        if not super().parse_request():
            return False
        self.content = self.body()
        if self.server.refusals == 0 or self.server.refused_paths not in self.path:
            return True
        self.server.refusals -= 1
        self.server.refused += 1
        self._answer(f"{_HEAD}<Error><Code>RequestTimeTooSkewed</Code><Message>{SKEWED}</Message><X>y</X></Error>", 403)
        return False

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            names = {name[len(prefix) :].partition("/")[0] for name in self.server.objects if name.startswith(prefix)}
            found = "".join(f"<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>" for name in names)
            self._answer(f"{_HEAD}<ListBucketResult>{found}</ListBucketResult>")
        elif parts.path in self._named():
            self._answer(self._named()[parts.path])
        else:
            self._answer(b"", 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.server.objects[urlsplit(self.path).path.split("/", 2)[2]] = self.content
        self._answer(b"")

    def do_POST(self) -> None:
        keys = re.findall(r"<Key>(.*?)</Key>", self.content.decode())
        for key in keys:
            self.server.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(f"{_HEAD}<DeleteResult>{deleted}</DeleteResult>")

    def _answer(self, content: bytes | str, status: int = 200) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.answer(content, status, ETag='"1"', Last_Modified="Mon, 23 Nov 2026 23:00:00 GMT")

    def _named(self) -> dict[str, bytes]:
        return {f"/bucket/{name}": content for name, content in self.server.objects.items()}


@contextmanager
def a_small_s3() -> Iterator[SmallS3]:
    """The server, while the block runs; its bucket is `bucket`."""
    with served(SmallS3()) as server:
        yield server
