"""Asks servers over HTTP: kept connections, a bound on how many calls run, repetitions of what may be repeated.

A call is repeated, up to `max_tries`, if the connection broke or the server says that it failed (5xx). After 429 it
waits as the server asks, up to the deadline. All else a server refuses for good: its own words become a failed sample.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from rollstream.engines.http_pool import LONGEST_REST_SECONDS, Server, ServerPool
from rollstream.engines.http_replies import Reply, failed_sample, wait_seconds
from rollstream.engines.http_settings import HttpSettings, server_root
from rollstream.schemas.errors import EngineDeadError, EngineError

_LOG = logging.getLogger(__name__)
_TOO_MANY: Final = 429
# Those after which the same request may be answered; 529 is Anthropic's "overloaded".
_REPEATABLE: Final = frozenset({408, 425, 500, 502, 503, 504, 529})
_MAX_ANSWER_BYTES: Final = 2**26
_CONNECT_SECONDS: Final = 10.0
# vLLM's and LiteLLM's servers close connections that are idle for 5 s. One that they just close would break a call.
_KEPT_SECONDS: Final = 4.0
_FIRST_BACKOFF_SECONDS: Final = 0.25
_JSON: Final = {"Content-Type": "application/json"}

OnReturn = Callable[[Server], Awaitable[None]]
"""Called before the first call of a server that was gone; `EngineError` if it can't be used."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The JSON answer to a call, which server gave it, and what its weights were when it was asked."""

    server: Server
    body: Any
    num_updates: int
    weight_version: int

    @property
    def was_overtaken(self) -> bool:
        """Whether the server's weights changed since."""
        return self.server.num_updates != self.num_updates


class HttpClient:
    """One session for all servers; `open` before the first call, `close` after the last."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self.on_return: OnReturn | None = None
        self.pool = ServerPool([server_root(url) for url in settings.urls])
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._addresses: dict[tuple[str, str], URL] = {}
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the session, in the running event loop."""
        key = self._settings.api_key
        self._session = aiohttp.ClientSession(
            # No limit here: `_slots` bounds the calls, and routes for weights must not wait for them.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            headers={} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
        )

    async def close(self) -> None:
        """Break off what runs: it ends with `EngineDeadError`."""
        self.pool.close()
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """One of the calls that may run side by side; raises `EngineError` if the block takes until the deadline."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._settings.request_seconds):
                    yield
            except TimeoutError:
                raise self._given_up(f"no answer within {self._settings.request_seconds} s") from None

    async def ask(self, server: Server, method: str, route: str, body: Any = None) -> Reply:
        """One try at one server. Raises `aiohttp.ClientError` or `OSError` if it can't be reached or breaks off."""
        if self._session is None or self._session.closed:
            raise EngineDeadError("the engine is not running: start() comes first, close() last")
        content = None if body is None else json.dumps(body).encode()
        headers = None if body is None else _JSON
        chunks, num_bytes = [], 0
        # A redirected POST would become a GET.
        async with self._session.request(
            method, self._address(server, route), data=content, headers=headers, allow_redirects=False
        ) as response:
            while chunk := await response.content.read(_MAX_ANSWER_BYTES):
                chunks.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > _MAX_ANSWER_BYTES:
                    raise EngineError(f"{server.root}{route} answered with more than {_MAX_ANSWER_BYTES} bytes")
        return Reply.read(response.status, b"".join(chunks), response.headers.get("Retry-After"))

    async def answered(self, route: str, body: Callable[[Server], Any]) -> Answered:
        """The answer to a call. `body` makes the request for the server that is chosen.

        Raises `FailedSampleError` if a server refuses it for good, and `EngineError` if none answered;
        `EngineDeadError` if none could even be reached.
        """
        num_tries, num_waits = 0, 0
        while num_tries < self._settings.max_tries:
            async with self.pool.taken() as server:
                try:
                    num_updates, weight_version, reply = await self._asked(server, route, body)
                except (aiohttp.ClientError, OSError) as error:
                    num_tries += 1
                    self.pool.failed(server, f"{type(error).__name__}: {error}")
                    _LOG.warning("%s rests: %s", server.root, server.problem)
                    continue
                self.pool.succeeded(server)
            if reply.is_ok:
                server.problem = ""
                return Answered(server, reply.json_of(server.root + route), num_updates, weight_version)
            server.problem = f"status {reply.status}: {reply.message}"
            if reply.status == _TOO_MANY:
                num_waits += 1
                self.pool.rest(server, wait_seconds(reply.retry_after, _backoff(num_waits)))
            elif reply.status in _REPEATABLE:
                num_tries += 1
                if num_tries < self._settings.max_tries:
                    await asyncio.sleep(wait_seconds(reply.retry_after, _backoff(num_tries)))
            else:
                raise failed_sample(reply, f"{server.root} answered {server.problem}")
        raise self._given_up(f"{num_tries} tries failed")

    async def _asked(self, server: Server, route: str, body: Callable[[Server], Any]) -> tuple[int, int, Reply]:
        """The reply, with the server's `num_updates` and weight version when it was asked."""
        if server.failures and self.on_return is not None:
            try:
                await self.on_return(server)
            except EngineError as error:
                raise ConnectionError(str(error)) from error
        before = server.num_updates, server.weight_version
        return *before, await self.ask(server, "POST", route, body(server))

    def _given_up(self, problem: str) -> EngineError:
        """The error of a call. If no server can be reached the engine is dead: no other call is answered either."""
        said = "; ".join(f"{server.root}: {server.problem}" for server in self.pool.servers if server.problem)
        message = f"{problem}; {said}" if said else problem
        if self.pool.is_unreachable:
            return EngineDeadError(f"no server can be reached: {message}")
        return EngineError(message)

    def _address(self, server: Server, route: str) -> URL:
        """Parsed once: that takes longer than the rest of what is done here for a call."""
        key = (server.root, route)
        if key not in self._addresses:
            self._addresses[key] = URL(f"{server.root}{route}")
        return self._addresses[key]


def _backoff(number: int) -> float:
    """Seconds before repetition `number`, from 1; by chance, so that calls that failed together come apart."""
    longest: float = min(_FIRST_BACKOFF_SECONDS * 2 ** min(number, 16), LONGEST_REST_SECONDS)
    return random.uniform(longest / 2, longest)
