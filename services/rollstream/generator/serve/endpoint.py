"""The HTTP endpoint of a generator, from its first answer to its last.

Needs      a weight version that is loaded: until then it answers 503, and is not ready.
Outlives   broker, Redis, registry and trainer: answers wait in the spool.
At SIGTERM it is not ready, takes no new calls, gives those in work `drain_seconds` to end, and the broker some seconds
           to take what is in the spool. The rest of it stays for the next process with this spool.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.parts import GeneratorParts
from rollstream.generator.serve import metrics
from rollstream.generator.serve.app import Application, build_app
from rollstream.generator.serve.asking import ROUTES, STRIPPED_HEADERS, refuse
from rollstream.generator.serve.publishing import publish_spooled
from rollstream.generator.serve.recorder import SpoolRecorder
from rollstream.http.keys import Keys
from rollstream.http.server import Address, HttpServer
from rollstream.process.beat import beat
from rollstream.process.health import Health
from rollstream.process.stop import Stop, first_to_end
from rollstream.schemas.errors import SpoolFullError

_LOG = logging.getLogger(__name__)

_NAME: Final = "generator"
_LOOK_EVERY_SECONDS: Final = 0.5
_SETTLES_SECONDS: Final = 10.0
"""Answers whose clients have left are ended, which takes a moment."""
_FLUSH_SECONDS: Final = 10.0


async def answer_clients(parts: GeneratorParts, health: Health, stop: Stop) -> None:
    """Answer until `stop` is asked, then end in order. Raises what ends the process."""
    serve = parts.settings.serve
    recorder = await SpoolRecorder.opened(serve, parts.run, parts.identity)
    try:
        application = await build_app(parts.engine, parts.settings, recorder)
        server = HttpServer(
            _Loaded(application.app, parts.current),
            name=_NAME,
            address=Address(host=serve.host, port=serve.port),
            guard=serve.guard,
            keys=Keys(serve.keys, serve.host),
            routes=ROUTES,
            stripped=STRIPPED_HEADERS,
        )
        await server.start()
        try:
            await first_to_end(
                publish_spooled(recorder, parts.run, f"{parts.identity.generator_id}-serve"),
                beat(health, lambda: ""),
                _answer(
                    _Endpoint(parts=parts, recorder=recorder, application=application, server=server), health, stop
                ),
            )
        finally:
            await server.close()
    finally:
        metrics.READY.set(0)
        await recorder.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """What answers."""

    parts: GeneratorParts
    recorder: SpoolRecorder
    application: Application
    server: HttpServer


async def _answer(endpoint: _Endpoint, health: Health, stop: Stop) -> None:
    await first_to_end(_show(endpoint, health), stop.asked())
    metrics.READY.set(0)
    health.draining()
    await endpoint.server.drain(endpoint.parts.settings.serve.drain_seconds)
    with suppress(TimeoutError):
        await asyncio.wait_for(endpoint.application.settled(), _SETTLES_SECONDS)
    with suppress(TimeoutError):
        await asyncio.wait_for(endpoint.recorder.emptied(), _FLUSH_SECONDS)
    if left := endpoint.recorder.num_records:
        _LOG.warning("%d answers stay in the spool %s for the next process", left, endpoint.parts.settings.serve.spool)


async def _show(endpoint: _Endpoint, health: Health) -> None:
    """Report for ever whether clients can be answered. Raises `EngineDeadError` once they never will be."""
    while True:
        endpoint.application.require_engine()
        why = _why_not(endpoint)
        metrics.READY.set(not why)
        health.check("serving", not why, why or "clients are answered")
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


def _why_not(endpoint: _Endpoint) -> str:
    """Why no client can be answered now; empty if each can."""
    if endpoint.parts.current.version is None:
        return "no version is loaded yet"
    try:
        endpoint.recorder.refuse_if_full()
    except SpoolFullError as error:
        return str(error)
    return ""


class _Loaded:
    """The application `app` once a version is loaded; before, calls are refused."""

    def __init__(self, app: ASGI3Application, current: CurrentVersion) -> None:
        self._app = app
        self._current = current

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http", "lifespan and websockets are off"
        if self._current.version is None:
            await refuse(scope, send, HTTPStatus.SERVICE_UNAVAILABLE, "no weights are loaded yet: try again")
        else:
            await self._app(scope, receive, send)
