"""An S3 server in this process: list, put, get, head and delete, as weight stores and archives ask. It can refuse."""

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
    """`objects`: name -> content. `bytes_put`: of all that were put.

    `refusals`: so many of the next requests are answered by 403, -1: all. `refused` counts them.

    Only requests whose path contains `refused_paths` are refused.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.refusals = 0
        self.refused = 0
        self.refused_paths = ""
        self.bytes_put = 0

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
            asked = parse_qs(parts.query)
            found = self._listed(asked.get("prefix", [""])[0], is_deep="delimiter" not in asked)
            self._answer(f"{_HEAD}<ListBucketResult>{found}</ListBucketResult>")
        elif parts.path in self._named():
            self._answer_part(self._named()[parts.path])
        else:
            self._answer(b"", 404)

    def _listed(self, prefix: str, *, is_deep: bool) -> str:
        names = [name for name in sorted(self.server.objects) if name.startswith(prefix)]
        if is_deep:
            return "".join(
                f"<Contents><Key>{name}</Key><Size>{len(self.server.objects[name])}</Size><ETag>1</ETag>"
                "<LastModified>2026-11-23T23:00:00.000Z</LastModified></Contents>"
                for name in names
            )
        below = {name[len(prefix) :].partition("/")[0] for name in names}
        return "".join(f"<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>" for name in below)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        name = urlsplit(self.path).path.split("/", 2)[2]
        if self.headers["If-None-Match"] and name in self.server.objects:
            self._answer(f"{_HEAD}<Error><Code>PreconditionFailed</Code></Error>", 412)
            return
        self.server.objects[name] = self.content
        self.server.bytes_put += len(self.content)
        self._answer(b"")

    def do_POST(self) -> None:
        keys = re.findall(r"<Key>(.*?)</Key>", self.content.decode())
        for key in keys:
            self.server.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(f"{_HEAD}<DeleteResult>{deleted}</DeleteResult>")

    def _answer_part(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if asked is None:
            self._answer(content)
            return
        first, part = int(asked[1]), content[int(asked[1]) : int(asked[2]) + 1]
        self._answer(part, 206, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(content)}")

    def _answer(self, content: bytes | str, status: int = 200, **headers: str) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.answer(content, status, ETag='"1"', Last_Modified="Mon, 23 Nov 2026 23:00:00 GMT", **headers)

    def _named(self) -> dict[str, bytes]:
        return {f"/bucket/{name}": content for name, content in self.server.objects.items()}


@contextmanager
def a_small_s3() -> Iterator[SmallS3]:
    """The server, while the block runs; its bucket is `bucket`."""
    with served(SmallS3()) as server:
        yield server
