"""A serving endpoint over the engine of an `EngineHost`, in the engine's process: what tests ask of it by scenarios."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.generator.serve.app import Application, build_app
from rollstream.generator.serve.asking import ROUTES, STRIPPED_HEADERS
from rollstream.generator.serve.call import ServedCall
from rollstream.generator.serve.settings import ServeSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.http.keys import ClientKey, Keys
from rollstream.http.server import Address, HttpServer
from rollstream.schemas.errors import SpoolFullError

MODEL = "tiny"
KEY = "key-of-the-web-client-000"
OTHER_KEY = "key-of-the-other-tenant-0"
PLAIN_KEY = "key-of-a-plain-client-000"
KEYS = {
    "web": ClientKey(key=KEY, tenant="acme", environment="sort_digits", may_train=True),
    "other": ClientKey(key=OTHER_KEY, tenant="globex"),
    "plain": ClientKey(key=PLAIN_KEY, tenant="acme", may_train=True, sampling="plain"),
}


@dataclass(slots=True)
class ListRecorder:
    """A `Recorder` in memory."""

    calls: list[ServedCall] = field(default_factory=list)
    is_full: bool = False
    is_full_at_end: bool = False

    def refuse_if_full(self) -> None:
        if self.is_full:
            raise SpoolFullError("the spool of this test is full")

    async def keep(self, call: ServedCall) -> None:
        if self.is_full_at_end:
            raise SpoolFullError("the spool of this test has become full")
        self.calls.append(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    server: HttpServer
    application: Application
    recorder: ListRecorder


_ENDPOINTS: list[_Endpoint] = []
"""Those of this process, which is an engine's; a test closes its own."""


async def serve(engine: Engine, settings: EngineSettings, changes: dict[str, Any]) -> str:
    """Start an endpoint, and return its base URL without `/v1`. `changes`: settings of `[generator.serve]`."""
    serving = ServeSettings(enabled=True, port=0, keys=KEYS, model_name=MODEL, **changes)
    recorder = ListRecorder()
    application = await build_app(
        engine, GeneratorSettings.model_construct(engine=settings, serve=serving, model=MODEL), recorder
    )
    server = HttpServer(
        application.app,
        name="serve",
        address=Address(host=serving.host, port=serving.port),
        guard=serving.guard,
        keys=Keys(serving.keys, serving.host),
        routes=ROUTES,
        stripped=STRIPPED_HEADERS,
    )
    port = await server.start()
    _ENDPOINTS.append(_Endpoint(server=server, application=application, recorder=recorder))
    return f"http://{serving.host}:{port}"


async def recorded(engine: Engine) -> Sequence[ServedCall]:
    """What the endpoint has recorded since it was last asked, after all answers have ended."""
    async with asyncio.timeout(30):
        await _ENDPOINTS[-1].application.settled()
    calls = list(_ENDPOINTS[-1].recorder.calls)
    _ENDPOINTS[-1].recorder.calls.clear()
    return calls


async def fill_spool(engine: Engine, begin: bool, end: bool) -> None:
    """Whether the recorder refuses when calls begin, and when they end."""
    _ENDPOINTS[-1].recorder.is_full = begin
    _ENDPOINTS[-1].recorder.is_full_at_end = end


async def close(engine: Engine) -> None:
    """Close the endpoint that was started last."""
    await _ENDPOINTS.pop().server.close()


async def load(engine: Engine, weight_version: int, path: Path) -> None:
    """Load a version."""
    await engine.load_weights(weight_version, path)
