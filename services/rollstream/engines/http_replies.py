"""What a server's reply says, before it is an answer: its JSON, its error message, how long it asks to wait."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from rollstream.schemas.errors import EngineError, FailedSampleError
from rollstream.schemas.failure import FailureCode

_OK: Final = 200
_LONGEST_MESSAGE: Final = 1000
_SHORTEST_WAIT_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 60.0
# What a server says of a prompt that does not fit into the model: OpenAI's code, and the words of vLLM and SGLang.
_TOO_LONG: Final = ("context_length_exceeded", "context length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's reply, whatever its status. `body`: its JSON; None if it is none."""

    status: int
    body: Any
    text: str
    retry_after: str | None

    @classmethod
    def read(cls, status: int, content: bytes, retry_after: str | None) -> Self:
        """The reply with this content."""
        try:
            body, text = json.loads(content), ""
        except (ValueError, RecursionError):
            body, text = None, content[:_LONGEST_MESSAGE].decode(errors="replace")
        return cls(status=status, body=body, text=text, retry_after=retry_after)

    @property
    def is_ok(self) -> bool:
        """Whether the server did what was asked."""
        return self.status == _OK

    def json_of(self, address: str) -> Any:
        """The JSON that `address` answered; raises `EngineError` if it is none."""
        if self.body is None:
            raise EngineError(f"{address} answered no JSON: {self.text[:200]!r}")
        return self.body

    @property
    def message(self) -> str:
        """What the server says of an error, in its own words, shortened."""
        return (_message_in(self.body) or self.text or "no message")[:_LONGEST_MESSAGE]


def failed_sample(reply: Reply, problem: str) -> FailedSampleError:
    """The error of a request that the server refuses for good."""
    code = FailureCode.REFUSED
    if reply.status in (400, 413, 422) and any(words in json.dumps(reply.body) for words in _TOO_LONG):
        code = FailureCode.PROMPT_TOO_LONG
    return FailedSampleError(code, problem)


def wait_seconds(retry_after: str | None, otherwise: float) -> float:
    """Seconds to wait, within bounds: what `Retry-After` asks for, a number or a date; `otherwise` without it."""
    asked = _asked_seconds(retry_after)
    return otherwise if asked is None else min(max(asked, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)


def _asked_seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return _seconds_until(retry_after)
    return seconds if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()


def _message_in(body: Any) -> str:
    """OpenAI has `{"error": {"message": …}}`, older servers a text as `error`, `message` or FastAPI's `detail`."""
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), "")
    if isinstance(body, str):
        return body
    return "" if body is None else json.dumps(body)
