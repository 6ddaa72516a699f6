"""What a request may take before and while an application answers it: a key, its rate, a place, and a bounded body.

One ASGI layer around a whole application. The body is read here, in full, before the application begins, so that a slow
or too large one takes no place in it. `client_of` and `json_of` give the application what was found.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
)

from rollstream.http import metrics
from rollstream.http.guard import LINGER_SECONDS
from rollstream.http.json_body import parsed
from rollstream.http.keys import CREDENTIALS, ClientKey, Keys
from rollstream.http.rate import Rate
from rollstream.http.refusals import Reason, Refusal, with_retry_after
from rollstream.http.settings import GuardSettings

_LOG = logging.getLogger(__name__)

_CLIENT: Final = "rollstream_client"
_JSON: Final = "rollstream_json"
_OTHER_ROUTE: Final = "other"


def client_of(scope: Any) -> tuple[str, ClientKey]:
    """Name and rights of the key that a request of a guarded application carries."""
    return cast(tuple[str, ClientKey], scope["state"][_CLIENT])


def json_of(scope: Any) -> Any:
    """The value of a request's body, None if it is empty."""
    return scope["state"][_JSON]


class Guarded:
    """The ASGI application `app`, for those who hold one of `keys`.

    `routes`: the ends of the paths that metrics name, the rest is "other". `stripped`: headers, in lower case, that
    never reach the application.
    """

    def __init__(
        self,
        app: ASGI3Application,
        *,
        server: str,
        settings: GuardSettings,
        keys: Keys,
        routes: Sequence[str],
        stripped: Collection[str] = (),
    ) -> None:
        self._app = app
        self._server = server
        self._bounds = settings
        self._keys = keys
        # The longest first: it says more.
        self._routes = sorted(routes, key=len, reverse=True)
        self._stripped = {*CREDENTIALS, *(name.encode() for name in stripped)}
        self._rate = Rate(settings.calls_per_minute)
        self._num_calls = 0
        self._num_body_bytes = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False

    async def idle(self) -> None:
        """Wait until no call is in work."""
        await self._is_idle.wait()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http", "lifespan and websockets are off"
        request, answer = _Request(receive), _Answer(send)
        try:
            refusal = await self._answered(scope, request, answer)
            if refusal is not None:
                await self._refuse(refusal, scope["path"], request, answer)
        finally:
            if answer.status is not None:
                self._count(scope["path"], answer.status)

    async def _answered(self, scope: HTTPScope, request: "_Request", answer: "_Answer") -> Refusal | None:
        """Let the application answer, or say why not."""
        client = self._keys.holder(scope["headers"])
        if client is None:
            return _UNKNOWN_KEY
        if (refusal := self._busy(client[0], scope)) is not None:
            return refusal
        self._hold(1, 0)
        try:
            if (refusal := await self._read(request)) is not None:
                return refusal
            if request.has_left:
                return None
            return await self._run(self._cleaned(scope, client), request, answer)
        finally:
            self._hold(-1, -len(request.body))

    def _busy(self, client: str, scope: HTTPScope) -> Refusal | None:
        if self.is_draining:
            return _DRAINING
        if self._num_calls >= self._bounds.max_calls:
            return _busy(Reason.CALLS, f"{self._bounds.max_calls} calls are in work, and no more at once")
        if wait := self._rate.wait_seconds(client):
            return Refusal(
                reason=Reason.RATE,
                status=HTTPStatus.TOO_MANY_REQUESTS,
                message=f"more than {self._bounds.calls_per_minute} calls a minute with this key: wait {wait} s",
                retry_after_seconds=wait,
            )
        # Refused before it is sent; the number of digits is bounded too, as that of headers.
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if len(declared) > 18 or int(declared) > self._bounds.body_bytes:
            return _too_long_body(self._bounds)
        return None

    async def _read(self, request: "_Request") -> Refusal | None:
        """Take the body, within its bounds."""
        while (part := await request.part()) is not None:
            self._hold(0, len(part))
            if len(request.body) > self._bounds.body_bytes:
                return _too_long_body(self._bounds)
            if self._num_body_bytes > self._bounds.bodies_bytes:
                return _busy(Reason.BODIES_BYTES, f"bodies in work have over {self._bounds.bodies_bytes} bytes")
        return None

    async def _run(self, scope: HTTPScope, request: "_Request", answer: "_Answer") -> Refusal | None:
        try:
            scope["state"][_JSON] = parsed(bytes(request.body))
        except ValueError as error:
            return Refusal(
                reason=Reason.JSON, status=HTTPStatus.BAD_REQUEST, message=f"the body is no JSON to be read: {error}"
            )
        try:
            await self._app(scope, request.replay, answer.send)
        except asyncio.CancelledError:
            # At its end the server cuts what is left. Else that is nobody's but a defect.
            if not self.is_draining:
                raise
        except Exception:
            if answer.status is not None:
                # Half an answer: the connection ends, so that the client sees that it is not whole.
                raise
            _LOG.exception("a call to %s failed", self._route(scope["path"]))
            return _FAILED
        return None

    def _cleaned(self, scope: HTTPScope, client: tuple[str, ClientKey]) -> HTTPScope:
        """The scope without what the client may not say, and with who it is."""
        headers = [(name, value) for name, value in scope["headers"] if name not in self._stripped]
        state = {**scope.get("state", {}), _CLIENT: client}
        return cast(HTTPScope, {**scope, "headers": headers, "state": state})

    async def _refuse(self, refusal: Refusal, path: str, request: "_Request", answer: "_Answer") -> None:
        metrics.REFUSED.labels(server=self._server, reason=refusal.reason.value).inc()
        body = refusal.body(path)
        await answer.send({"type": "http.response.start", "status": refusal.status, "headers": refusal.headers(body)})
        await answer.send({"type": "http.response.body", "body": body, "more_body": True})
        # The client has its answer. It is heard out, else it would see a reset instead.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await request.drop()
        await answer.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _hold(self, calls: int, num_bytes: int) -> None:
        self._num_calls += calls
        self._num_body_bytes += num_bytes
        metrics.IN_WORK.labels(server=self._server).set(self._num_calls)
        metrics.BODIES.labels(server=self._server).set(self._num_body_bytes)
        if self._num_calls:
            self._is_idle.clear()
        else:
            self._is_idle.set()

    def _count(self, path: str, status: int) -> None:
        metrics.REQUESTS.labels(server=self._server, route=self._route(path), code=str(status)).inc()

    def _route(self, path: str) -> str:
        return next((route for route in self._routes if path.endswith(route)), _OTHER_ROUTE)


class _Request:
    """A body that is taken in parts, and then given again as one."""

    def __init__(self, receive: ASGIReceiveCallable) -> None:
        self._receive = receive
        self._is_whole = False
        self._is_replayed = False
        self.body = bytearray()
        self.has_left = False

    async def part(self) -> bytes | None:
        """The next part; None after the last, or if the client has left."""
        part = await self._next()
        if part is not None:
            self.body += part
        return part

    async def drop(self) -> None:
        """Read to the end, and keep nothing."""
        while await self._next() is not None:
            pass

    async def replay(self) -> ASGIReceiveEvent:
        """`receive` for the application: the whole body, then what else happens."""
        if self._is_replayed:
            return await self._receive()
        self._is_replayed = True
        return {"type": "http.request", "body": bytes(self.body), "more_body": False}

    async def _next(self) -> bytes | None:
        if self._is_whole or self.has_left:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            self.has_left = True
            return None
        self._is_whole = not message.get("more_body", False)
        return message["body"]


class _Answer:
    """`send`, and the status that was sent; None before."""

    def __init__(self, send: ASGISendCallable) -> None:
        self._send = send
        self.status: int | None = None

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            message["headers"] = with_retry_after(self.status, message["headers"])
        await self._send(message)


_UNKNOWN_KEY: Final = Refusal(
    reason=Reason.KEY,
    status=HTTPStatus.UNAUTHORIZED,
    message="no key, or one that is not known: send `Authorization: Bearer KEY` or `x-api-key: KEY`",
)
_DRAINING: Final = Refusal(
    reason=Reason.DRAINING,
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    message="this server ends: try again, at another one",
)
_FAILED: Final = Refusal(
    reason=Reason.FAILED,
    status=HTTPStatus.INTERNAL_SERVER_ERROR,
    message="the call failed for a reason that is in this server's log",
)


def _busy(reason: Reason, why: str) -> Refusal:
    return Refusal(reason=reason, status=HTTPStatus.SERVICE_UNAVAILABLE, message=f"{why}: try again")


def _too_long_body(bounds: GuardSettings) -> Refusal:
    return Refusal(
        reason=Reason.BODY_BYTES,
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        message=f"the body has more than {bounds.body_bytes} bytes: send a smaller one",
    )
