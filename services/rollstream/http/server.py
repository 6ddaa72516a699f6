"""An HTTP server in the event loop that runs: uvicorn, with the guard before it, and without its hold on signals."""

import asyncio
import logging
import resource
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from uvicorn import Config, Server
from uvicorn._types import ASGI3Application

from rollstream.http import metrics
from rollstream.http.guard import KEPT_SECONDS, LINGERING, Door, GuardedProtocol
from rollstream.http.keys import Keys
from rollstream.http.middleware import Guarded
from rollstream.http.settings import GuardSettings
from rollstream.schemas.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

# Of the process beside connections: Kafka's sockets, the engine's, files of weights.
_OTHER_FILES: Final = 512
_STARTS_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 0.01
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens; port 0 takes a free one."""

    host: str
    port: int


class HttpServer:
    """Serves `app` under `name`, which metrics and messages say. See `Guarded` for routes and stripped headers.

    Raises `ConfigurationError` if the process may not open as many files as it needs.
    """

    def __init__(
        self,
        app: ASGI3Application,
        *,
        name: str,
        address: Address,
        guard: GuardSettings,
        keys: Keys,
        routes: Sequence[str],
        stripped: Collection[str] = (),
    ) -> None:
        _allow_files(guard.max_connections + LINGERING + _OTHER_FILES)
        metrics.show_from_the_start(name)
        self._name = name
        self._address = address
        self._guarded = Guarded(app, server=name, settings=guard, keys=keys, routes=routes, stripped=stripped)
        # Not a class, but uvicorn only calls it.
        protocol = cast(Any, partial(GuardedProtocol, door=Door(server=name, settings=guard)))
        config = Config(
            cast(Any, self._guarded),
            http=protocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            # What strangers send wrong is counted, and would fill the log.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=1,
            # The guard ends idle connections, later than uvicorn does by itself.
            timeout_keep_alive=int(2 * KEPT_SECONDS),
        )
        self._server = _Uvicorn(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises `ConfigurationError` if host or port can't be had."""
        listening = _listen(self._name, self._address)
        port = int(listening.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve([listening]), name=f"http {self._name}")
        async with asyncio.timeout(_STARTS_SECONDS):
            while not self._server.started:
                if self._serving.done():
                    self._serving.result()
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
        _LOG.info("%s answers at %s port %d", self._name, self._address.host, port)
        return port

    async def drain(self, seconds: float) -> None:
        """Answer new calls with 503 from now on, and wait so long for those in work."""
        self._guarded.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._guarded.idle()

    async def close(self) -> None:
        """Stop listening, and cut what is still open."""
        self._guarded.is_draining = True
        self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        calls = list(self._server.server_state.tasks)
        if self._serving is not None:
            await self._serving
        # Those that did not see the end of their connection were cancelled.
        await asyncio.gather(*calls, return_exceptions=True)


class _Uvicorn(Server):
    """uvicorn's server. The process has its own way to end at a signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(name: str, address: Address) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address.host, address.port))
        except BaseException:
            listening.close()
            raise
    except socket.gaierror as error:
        raise ConfigurationError(
            f"host {address.host!r} of {name} is no address of this machine: {error.strerror}; set one, or 0.0.0.0 "
            "for all"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"port {address.port} of {name} can't be had at {address.host}: {error.strerror}; set another port, or 0 "
            "for a free one, or another host"
        ) from error
    return listening


def _allow_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigurationError(
            f"this process may open {hard} files (`ulimit -Hn`), and guard.max_connections needs {needed}: raise the "
            "bound, or set fewer connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
