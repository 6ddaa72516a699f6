"""A schema registry in this process. Of Confluent's HTTP interface it can register, look up and read schemas."""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.threads import Answering, served

_VERSIONS = re.compile(r"/subjects/([^/?]+)/versions")
_SUBJECT = re.compile(r"/subjects/([^/?]+)")
_ID = re.compile(r"/schemas/ids/(\d+)")
_NO_SUBJECT, _NO_SCHEMA, _UNAUTHORIZED = 40401, 40403, 40101


class SmallRegistry(ThreadingHTTPServer):
    """While `is_down`, every request fails. With `credentials`, `user:password`, so does one without them."""

    def __init__(self, credentials: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_down = False
        self.demanded = credentials and f"Basic {base64.b64encode(credentials.encode()).decode()}"
        self.schemas: list[Any] = []
        self.subjects: dict[str, list[int]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def register(self, subject: str, schema: Any) -> dict[str, Any]:
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return {"id": number, "subject": subject, "version": versions.index(number) + 1, "schema": json.dumps(schema)}

    def look_up(self, subject: str, schema: Any) -> dict[str, Any] | None:
        known = [self.schemas[number - 1] for number in self.subjects.get(subject, [])]
        return self.register(subject, schema) if schema in known else None


class _Handler(Answering, BaseHTTPRequestHandler):
    server: SmallRegistry

    def parse_request(self) -> bool:
        """Whether the request is one to answer; what may not come in is refused here."""
        if not super().parse_request():
            return False
        is_allowed = self.server.demanded in (None, self.headers["Authorization"])
        if not is_allowed:
            self.body()
            self._answer({"error_code": _UNAUTHORIZED, "message": "Unauthorized"}, status=401)
        return is_allowed

    def do_GET(self) -> None:
        found = _ID.match(self.path)
        number = int(found[1]) if found else 0
        if 1 <= number <= len(self.server.schemas):
            self._answer({"schema": json.dumps(self.server.schemas[number - 1])})
        else:
            self._refuse(_NO_SCHEMA)

    def do_POST(self) -> None:
        schema = json.loads(json.loads(self.body())["schema"])
        if found := _VERSIONS.match(self.path):
            self._answer(self.server.register(found[1], schema))
        elif (found := _SUBJECT.match(self.path)) and (known := self.server.look_up(found[1], schema)):
            self._answer(known)
        else:
            self._refuse(_NO_SUBJECT)

    def do_PUT(self) -> None:
        self._answer(json.loads(self.body()))

    def _refuse(self, code: int) -> None:
        self._answer({"error_code": code, "message": "not found"}, status=404)

    def _answer(self, answer: Any, *, status: int = 200) -> None:
        status = 503 if self.server.is_down else status
        self.answer(json.dumps(answer).encode(), status, Content_Type="application/vnd.schemaregistry.v1+json")


@contextmanager
def a_small_registry(credentials: str | None = None) -> Iterator[SmallRegistry]:
    """A registry with nothing in it; it forgets everything at the end. Only who has the `credentials` may come in."""
    with served(SmallRegistry(credentials)) as server:
        yield server
