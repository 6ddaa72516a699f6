"""Runs a model's program in a sandbox service elsewhere: sandbox-fusion's `POST /run_code`, or one that speaks it.

Only the URL of the settings is asked: no redirect is followed and no proxy of the environment is used. Whatever the
service gets wrong is a `RewardError`, never a program that failed.
"""

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from rollstream.schemas.errors import RewardError

MAX_ANSWER_BYTES: Final = 2**22
"""Of the service's answer; it holds the program's output."""
_READ_BYTES: Final = 2**16
# Starting a container, and the way there and back.
_OVERHEAD_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended: what it printed if it ended with exit code 0, else None."""

    stdout: str | None
    is_timeout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The service. A program gets `run_seconds` to compile and as long to run."""

    url: str
    """All of it, e.g. http://sandbox:8080/run_code."""
    run_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not _is_plain(self.url):
            raise ValueError("sandbox_url must be http://HOST[:PORT]/run_code or https://…, without user and password")
        if not 0 < self.run_seconds <= 60:
            raise ValueError(f"sandbox_run_seconds is {self.run_seconds:g}, which is not above 0 and at most 60")

    def run(self, code: str, stdin: str) -> Ran:
        """Run a Python program. Raises `RewardError` if the service does not say how it ended."""
        request = {
            "code": code,
            "language": "python",
            "stdin": stdin,
            "compile_timeout": self.run_seconds,
            "run_timeout": self.run_seconds,
            "files": {},
            "fetch_files": [],
        }
        return _outcome(self._asked(json.dumps(request).encode()))

    def _asked(self, body: bytes) -> Any:
        deadline = time.monotonic() + 2 * self.run_seconds + _OVERHEAD_SECONDS
        try:
            status, answer = self._posted(body, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise RewardError(f"the sandbox service did not answer: {type(error).__name__}") from error
        if status != http.client.OK:
            raise RewardError(f"the sandbox service answered with HTTP status {status}")
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise RewardError("the sandbox service answered with what is no JSON") from error

    def _posted(self, body: bytes, deadline: float) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=deadline - time.monotonic())
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, _read(response, deadline)
        finally:
            connection.close()


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_printed = url.isascii() and url.isprintable() and " " not in url
    return parts.scheme in {"http", "https"} and has_host and "@" not in parts.netloc and is_printed


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body. A service that sends one byte at a time is stopped at the deadline too."""
    read = bytearray()
    while part := response.read1(_READ_BYTES):
        read += part
        if len(read) > MAX_ANSWER_BYTES:
            raise RewardError(f"the sandbox service answered with more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(read)


def _outcome(answer: Any) -> Ran:
    """`Success`: it ran with exit code 0. `Failed`: it did not compile, raised, or ran too long."""
    status = answer.get("status") if isinstance(answer, dict) else None
    stages = [answer.get(stage) for stage in ("compile_result", "run_result")] if status else []
    ended = [stage for stage in stages if isinstance(stage, dict)]
    if status == "Success" and ended and isinstance(ended[-1].get("stdout"), str):
        return Ran(stdout=ended[-1]["stdout"])
    if status == "Failed" and ended:
        return Ran(stdout=None, is_timeout=any(stage.get("status") == "TimeLimitExceeded" for stage in ended))
    raise RewardError(f"the sandbox service could not run the program: status {str(status)[:100]!r}")
