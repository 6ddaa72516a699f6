"""What a connection may take before it is a request: time, bytes, and one of a bounded number of places.

uvicorn closes no connection that sends nothing, or half a request, and takes headers of any size. Here each phase of a
connection has a time: its headers, the body, the time between two requests, and an answer that nobody takes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rollstream.http import metrics
from rollstream.http.refusals import Reason, Refusal
from rollstream.http.settings import GuardSettings

LINGER_SECONDS: Final = 1.0
"""What comes after a refusal is dropped for so long: who is cut while it sends sees a reset instead of the answer."""
LINGERING: Final = 64
"""So many connections over the bound are answered before they are closed."""
# Longer than clients keep a connection that they do not use (5 s in httpx): else a call may meet its end.
KEPT_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What the connections of a server share. `waiting`: those that have sent no request yet, the oldest first."""

    server: str
    settings: GuardSettings
    waiting: "dict[GuardedProtocol, None]" = field(default_factory=dict)

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        metrics.REFUSED.labels(server=self.server, reason=reason.value).inc()

    def note(self, num_connections: int) -> None:
        """Show how many connections are open."""
        metrics.CONNECTIONS.labels(server=self.server).set(num_connections)


class GuardedProtocol(HttpToolsProtocol):
    """One connection, bounded as `door` says."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door = door
        self._bounds = door.settings
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._num_other_bytes = 0  # since the last that belonged to a body: headers, trailers, extensions
        self._is_in_body = False
        self._has_ended = False
        self._refusal: Refusal | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._door.waiting[self] = None
        self._time(self._bounds.header_seconds, self._end_late_headers)
        self._make_room()
        self._door.note(len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)
        self._door.note(len(self.connections))

    def _make_room(self) -> None:
        """Cut the oldest that has sent no request, if there are too many: idle strangers keep nobody out."""
        over = len(self.connections) - self._bounds.max_connections
        if over <= 0:
            return
        oldest = next(iter(self._door.waiting))
        if oldest is not self:
            self._door.refused(Reason.CONNECTIONS)
            oldest._cut()
        elif over > LINGERING:
            self._door.refused(Reason.CONNECTIONS)
            self._cut()
        else:
            self._end(_too_many_connections(self._bounds))

    def _cut(self) -> None:
        self._leave()
        self._has_ended = True
        # Now, not when the transport says so: whoever comes next has this place.
        self.connections.discard(self)
        self.transport.abort()

    def _leave(self) -> None:
        self._door.waiting.pop(self, None)
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()

    # What the client sends

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._num_other_bytes += len(data)
        super().data_received(data)
        if self._num_other_bytes > self._bounds.header_bytes and not self._has_ended:
            self._end(_too_long_headers(self._bounds))

    def on_message_begin(self) -> None:
        if self._is_answering():
            # Each would be kept until the one before it is answered, and a small packet holds thousands.
            raise ValueError("a request before the answer to the last one")
        super().on_message_begin()
        self._time(self._bounds.header_seconds, self._end_late_headers)

    def on_headers_complete(self) -> None:
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > self._bounds.header_bytes:
            self._refusal = _too_long_headers(self._bounds)
            raise ValueError("too long headers")
        self._door.waiting.pop(self, None)
        self._is_in_body = True
        self._time(self._bounds.body_seconds, self._end_late_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_other_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_other_bytes = 0
        self._is_in_body = False
        super().on_message_complete()
        if self._is_answering():
            self._time(None)
        else:
            self._time(KEPT_SECONDS, self._close)

    def send_400_response(self, msg: str) -> None:
        self._end(self._refusal or _NOT_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """What comes after a request to speak another protocol is not read; the request itself is answered."""
        self._stop_reading()

    # The answer

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._time(self._bounds.stall_seconds, self._cut)
        elif not self._is_in_body:
            self._time(KEPT_SECONDS, self._close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._bounds.stall_seconds, self._cut_stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Ends

    def _time(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        """Do `then` in so many seconds, instead of what was to come; None: nothing is to come."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or then is None else self.loop.call_later(seconds, then)

    def _end_late_headers(self) -> None:
        if self._num_other_bytes:
            self._end(_late(Reason.HEADER_SECONDS, self._bounds.header_seconds))
        else:
            self._door.refused(Reason.HEADER_SECONDS)
            self._close()

    def _end_late_body(self) -> None:
        self._end(_late(Reason.BODY_SECONDS, self._bounds.body_seconds))

    def _cut_stalled(self) -> None:
        self._door.refused(Reason.STALLED)
        self._cut()

    def _end(self, refusal: Refusal) -> None:
        """Answer with a refusal, unless another answer has begun, and close after a moment."""
        if self._is_answering() and not self._is_in_body:
            self._stop_reading()
            return
        self._has_ended = True
        self._door.refused(refusal.reason)
        if not (self._is_answering() and self.cycle.response_started):
            self._answer(refusal)
        if self._is_answering():
            # The application sees that the client has left.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._time(LINGER_SECONDS, self._close)

    def _answer(self, refusal: Refusal) -> None:
        body = refusal.body(getattr(self, "url", b"").decode("latin-1"))
        lines = b"".join(b"%b: %b\r\n" % header for header in refusal.headers(body))
        status = f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\n".encode()
        self.transport.write(status + lines + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _stop_reading(self) -> None:
        """Finish the answer that has begun, and drop what else comes."""
        self._has_ended = True
        self.cycle.keep_alive = False

    def _close(self) -> None:
        self.transport.close()
        self._time(LINGER_SECONDS, self._cut)


_NOT_HTTP: Final = Refusal(
    reason=Reason.NOT_HTTP, status=HTTPStatus.BAD_REQUEST, message="this is no HTTP/1.1 request, or its URL is no URL"
)


def _too_long_headers(bounds: GuardSettings) -> Refusal:
    return Refusal(
        reason=Reason.HEADER_BYTES,
        status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        message=f"the headers have more than {bounds.header_bytes} bytes: send fewer or shorter ones",
    )


def _too_many_connections(bounds: GuardSettings) -> Refusal:
    return Refusal(
        reason=Reason.CONNECTIONS,
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        message=f"all {bounds.max_connections} connections of this server are in use: try again",
    )


def _late(reason: Reason, seconds: float) -> Refusal:
    part = "headers" if reason == Reason.HEADER_SECONDS else "body"
    return Refusal(
        reason=reason,
        status=HTTPStatus.REQUEST_TIMEOUT,
        message=f"the {part} of the request did not come within {seconds:g} s: send it faster",
    )
