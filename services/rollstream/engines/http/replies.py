"""What a server's reply says, before it is an answer: its JSON, its error message, how long it asks to wait."""

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from pydantic_core import from_json

from rollstream.engines.http.bodies import has_more_values
from rollstream.schemas.errors import EngineError, FailedSampleError
from rollstream.schemas.failure import FailureCode

_OK: Final = 200
_REFUSED_KEY: Final = (401, 403)
# LiteLLM without a database answers 400 to a key that is not its own: it would look for it there.
_NO_DATABASE: Final = "no_db_connection"
_LONGEST_MESSAGE: Final = 1000
_SHOWN_CHARACTERS: Final = 200
_SHORTEST_WAIT_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 60.0
# What a server says of a prompt that does not fit into the model: OpenAI's code, and the words of vLLM and SGLang.
_TOO_LONG: Final = ("context_length_exceeded", "context length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's reply, whatever its status. `body`: its JSON; None if it is none.

    `asked_seconds`: how long `Retry-After` asks to wait, a number or a date; infinite if no float holds it; None
    without one that can be read.
    """

    status: int
    body: Any
    text: str
    asked_seconds: float | None

    @classmethod
    def read(cls, status: int, content: bytes, retry_after: str | None, most_bytes: int) -> Self:
        """The reply with this content. Infinity, NaN and halves of surrogate pairs are no JSON.

        Nor is what has more values than a reply of at most `most_bytes` can need.
        """
        body, why = None, ""
        if has_more_values(content, most_bytes):
            why = "more values than an answer to this request can need: "
        else:
            with suppress(ValueError):
                body = from_json(content, allow_inf_nan=False)
        text = why + content[:_LONGEST_MESSAGE].decode(errors="replace") if body is None else ""
        return cls(status=status, body=body, text=text, asked_seconds=_asked_seconds(retry_after))

    @property
    def is_ok(self) -> bool:
        """Whether the server did what was asked."""
        return self.status == _OK

    @property
    def refuses_key(self) -> bool:
        """Whether the server refuses the key, and would refuse each other call with it."""
        error = self.fields.get("error")
        lacks_database = isinstance(error, dict) and error.get("type") == _NO_DATABASE
        return self.status in _REFUSED_KEY or (self.status == 400 and lacks_database)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its JSON; none if that is no object."""
        return self.body if isinstance(self.body, dict) else {}

    def json_of(self, address: str) -> Any:
        """The JSON that `address` answered; raises `EngineError` if it is none."""
        if self.body is None:
            raise EngineError(f"{address} answered no JSON: {self.text[:_SHOWN_CHARACTERS]!r}")
        return self.body

    @property
    def message(self) -> str:
        """What the server says of an error, in its own words, shortened."""
        return (message_in(self.body) or self.text or "no message")[:_LONGEST_MESSAGE]


def bounded_wait(asked_seconds: float) -> float:
    """What `Retry-After` asks for, within bounds."""
    return min(max(asked_seconds, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)


def failed_sample(reply: Reply, problem: str) -> FailedSampleError:
    """The error of a request that the server refuses for good."""
    code = FailureCode.REFUSED
    if reply.status in (400, 413, 422) and any(words in json.dumps(reply.body) for words in _TOO_LONG):
        code = FailureCode.PROMPT_TOO_LONG
    return FailedSampleError(code, problem)


def message_in(body: Any) -> str:
    """OpenAI has `{"error": {"message": …}}`, older servers a text as `error`, `message` or FastAPI's `detail`."""
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), "")
    if isinstance(body, str):
        return body
    return "" if body is None else json.dumps(body)


def _asked_seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        return _seconds_until(retry_after)
    return None if math.isnan(seconds) else max(seconds, 0.0)


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
