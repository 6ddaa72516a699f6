"""Why a server does not answer a request, and how it says so: in OpenAI's shape, or in Anthropic's for its route."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final


class Reason(StrEnum):
    """What a request or a connection was refused for."""

    KEY = "key"
    DRAINING = "draining"
    CALLS = "calls"
    RATE = "rate"
    BODY_BYTES = "body_bytes"
    BODIES_BYTES = "bodies_bytes"
    BODY_SECONDS = "body_seconds"
    HEADER_BYTES = "header_bytes"
    HEADER_SECONDS = "header_seconds"
    JSON = "json"
    NOT_HTTP = "not_http"
    CONNECTIONS = "connections"
    STALLED = "stalled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that refuses. `message`: what was wrong, the bound, and what to change; never what the client sent.

    `retry_after_seconds`: when to try again; None leaves it to the status.
    """

    reason: Reason
    status: HTTPStatus
    message: str
    retry_after_seconds: int | None = None

    def body(self, path: str) -> bytes:
        """The JSON that clients of this path expect."""
        return json.dumps(error_content(path, self.status, self.message, self.reason)).encode()

    def headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """Those of the answer with this body, after which the connection is closed."""
        found = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.retry_after_seconds is not None:
            found.append((_RETRY_AFTER, str(self.retry_after_seconds).encode()))
        return with_retry_after(self.status, found)


_RETRY_AFTER: Final = b"retry-after"


def with_retry_after(status: int, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer. A 503 says when to try again: what is in its way passes soon."""
    found = list(headers)
    if status == HTTPStatus.SERVICE_UNAVAILABLE and all(name.lower() != _RETRY_AFTER for name, _ in found):
        found.append((_RETRY_AFTER, b"1"))
    return found


_ANTHROPIC: Final = "/v1/messages"
_OPENAI_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "server_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_error",
}
_ANTHROPIC_TYPES: Final = {
    **_OPENAI_TYPES,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def error_content(path: str, status: HTTPStatus, message: str, code: str) -> dict[str, Any]:
    """What the body of an error says, as the clients of `path` read it."""
    if _ANTHROPIC in path:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": _OPENAI_TYPES.get(status, "invalid_request_error"), "code": code}}
