"""Asks servers over HTTP: kept connections, a bound on how many calls run, repetitions of what may be repeated.

A call is repeated, up to `max_tries`, if the connection broke, if the server says that it failed (5xx), or if its reply
can't be read (`bodies.py`). After 429 it waits as the server asks, up to the deadline. A refused key ends the
engine: each call would be refused. All else a server refuses for good: its own words become a failed sample.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_result, wait_exponential, wait_random_exponential
from yarl import URL

from rollstream.engines.http.bodies import read_body
from rollstream.engines.http.outgoing import open_client
from rollstream.engines.http.pool import Server, ServerPool
from rollstream.engines.http.replies import Reply, bounded_wait, failed_sample
from rollstream.engines.http.settings import HttpSettings, server_root
from rollstream.schemas.errors import EngineDeadError, EngineError, EngineLateError, RefusedKeyError

_LOG = logging.getLogger(__name__)
_TOO_MANY: Final = 429
# Those after which the same request may be answered; 529 is Anthropic's "overloaded".
_REPEATABLE: Final = frozenset({408, 425, _TOO_MANY, 500, 502, 503, 504, 529})
MOST_ROUTE_BYTES: Final = 2**22
"""A reply of a route that calls no model: lists of models and vLLM's configuration have some 100 kB."""
# Who starts anew takes longer than that. Nobody would notice it of a server that is asked nothing meanwhile.
_SEEN_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_JSON: Final = {"Content-Type": "application/json"}

OnReturn = Callable[[Server], Awaitable[None]]
"""Called before a call of a server that was gone, or asked nothing for a while; `EngineError` if it can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a model. `body` makes the request for the server that is chosen; no answer has over `most_bytes`."""

    route: str
    body: Callable[[Server], Any]
    most_bytes: int


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The JSON answer to a call, which server gave it, and which weights it had when it was asked."""

    server: Server
    body: Any
    weight_version: int


@dataclass(slots=True, kw_only=True)
class _Tries:
    """Of one call: until when it may go on, when it first found nobody (monotonic seconds), how many failed.

    The others are of its last try: how long the server asks to wait, and whether another one may be asked meanwhile.
    """

    give_up_at: float
    lost_at: float = math.inf
    num_failed: int = 0
    asked_seconds: float | None = None
    resting: Server | None = None


class HttpClient:
    """One session for all servers; `open` before the first call, `close` after the last."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self.on_return: OnReturn | None = None
        base = settings.retry_seconds
        roots = [server_root(url) for url in settings.urls]
        self.pool = ServerPool(roots, most=settings.most_per_server, rest_seconds=base)
        # From half of it on by chance, so that calls that failed together come apart.
        half, longest = base / 2, max(base, _LONGEST_PAUSE_SECONDS) / 2
        self._backoff = wait_exponential(multiplier=half, max=longest) + wait_random_exponential(half, longest)
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._addresses: dict[tuple[str, str], URL] = {}
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the session, in the running event loop."""
        key = self._settings.api_key
        # `_slots` bounds the calls, and routes for weights must not wait for them.
        self._session = open_client({} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"})

    async def close(self) -> None:
        """Break off what runs: it ends with `EngineDeadError`."""
        self.pool.close()
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, server: Server, method: str, route: str, body: Any = None, *, most_bytes: int = MOST_ROUTE_BYTES
    ) -> Reply:
        """One try at one server. Raises `aiohttp.ClientConnectionError` or `OSError` if it can't be reached or leaves.

        Raises `EngineError` if its reply is larger than `most_bytes`, compressed, or no HTTP.
        """
        if self._session is None or self._session.closed:
            raise EngineDeadError("the engine is not running: start() comes first, close() last")
        content = None if body is None else json.dumps(body).encode()
        headers = None if body is None else _JSON
        try:
            # A redirected POST would become a GET.
            async with self._session.request(
                method, self._address(server, route), data=content, headers=headers, allow_redirects=False
            ) as response:
                found = await read_body(response, most_bytes)
                return Reply.read(response.status, found, response.headers.get("Retry-After"), most_bytes)
        except (aiohttp.ClientConnectionError, OSError):
            raise
        # Whatever else aiohttp raises, the bytes of a stranger caused it.
        except (aiohttp.ClientError, ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise EngineError(f"{route} gave no readable reply: {type(error).__name__}: {str(error)[:500]}") from error

    async def answered(self, call: Call) -> ServerAnswer:
        """The answer to a call, once it is among those that may run side by side.

        Raises `FailedSampleError` if a server refuses it for good, `RefusedKeyError` if it refuses the key, and
        `EngineError` if none answered: `EngineLateError` within the deadline, `EngineDeadError` if none could even be
        reached, by other calls neither: a request at which a server breaks off each time says nothing of the others.
        """
        async with self._slots:
            tries = _Tries(give_up_at=time.monotonic() + self._settings.request_seconds)
            try:
                async with asyncio.timeout(self._settings.request_seconds):
                    return await self._answered(call, tries)
            except TimeoutError:
                late = f"no answer within {self._settings.request_seconds} s"
                raise self._given_up(EngineLateError, late, tries) from None

    async def _answered(self, call: Call, tries: _Tries) -> ServerAnswer:
        retrying = AsyncRetrying(
            retry=retry_if_result(lambda answer: answer is None),
            stop=lambda _: tries.num_failed >= self._settings.max_tries,
            wait=lambda state: self._pause(state, tries),
            retry_error_callback=lambda _: None,
        )
        answer: ServerAnswer | None = await retrying(self._try, call, tries)
        if answer is None:
            raise self._given_up(EngineError, f"{tries.num_failed} tries failed", tries)
        return answer

    async def _try(self, call: Call, tries: _Tries) -> ServerAnswer | None:
        """One try at one server; None if it may be repeated."""
        async with self.pool.taken() as server:
            try:
                await self._see_again(server)
                asked_with = server.weight_version
                reply = await self._reply(server, call)
            except (aiohttp.ClientError, OSError) as error:
                tries.num_failed += 1
                tries.lost_at = min(tries.lost_at, time.monotonic())
                tries.asked_seconds, tries.resting = 0.0, server
                self.pool.failed(server, f"{type(error).__name__}: {error}")
                _LOG.warning("%s rests: %s", server.root, server.problem)
                return None
            self.pool.succeeded(server)
        if reply is not None and reply.is_ok:
            server.asked_until = 0.0
            return ServerAnswer(server, reply.json_of(server.root + call.route), asked_with)
        is_busy = reply is not None and reply.status == _TOO_MANY
        tries.num_failed += not is_busy
        tries.asked_seconds, tries.resting = None, server if is_busy else None
        if reply is not None:
            self._refuse_for_good(server, reply)
            self._wait_as_asked(server, reply, tries)
            tries.asked_seconds = reply.asked_seconds
        return None

    def _pause(self, state: RetryCallState, tries: _Tries) -> float:
        """Seconds before the next try. A server that is busy rests for them, and another one is asked at once."""
        seconds = self._backoff(state) if tries.asked_seconds is None else bounded_wait(tries.asked_seconds)
        if tries.resting is None:
            return seconds
        self.pool.rest(tries.resting, seconds)
        return 0.0

    async def _see_again(self, server: Server) -> None:
        """Have a server looked at that was gone, or may have been; raises `ConnectionError` if it can't be used."""
        is_known = not server.failures and time.monotonic() - server.seen_at < _SEEN_SECONDS
        if is_known or self.on_return is None:
            return
        try:
            await self.on_return(server)
        except EngineError as error:
            raise ConnectionError(str(error)) from error
        server.seen_at = time.monotonic()

    async def _reply(self, server: Server, call: Call) -> Reply | None:
        """The reply; None if it can't be read, which `server.problem` tells."""
        try:
            reply = await self.ask(server, "POST", call.route, call.body(server), most_bytes=call.most_bytes)
        except EngineDeadError:
            raise
        except EngineError as error:
            server.problem = str(error)
            _LOG.warning("%s: %s", server.root, error)
            return None
        server.seen_at = time.monotonic()
        server.problem = "" if reply.is_ok else f"status {reply.status}: {reply.message}"
        return reply

    @staticmethod
    def _refuse_for_good(server: Server, reply: Reply) -> None:
        if reply.refuses_key:
            raise RefusedKeyError(refused_key(server, reply))
        if reply.status not in _REPEATABLE:
            raise failed_sample(reply, f"{server.root} answered {server.problem}")

    def _wait_as_asked(self, server: Server, reply: Reply, tries: _Tries) -> None:
        """Note until when the server asks to be left alone. Raises `EngineLateError` if all do, beyond the deadline."""
        asked = reply.asked_seconds or 0.0
        server.asked_until = time.monotonic() + asked
        if all(one.asked_until > tries.give_up_at for one in self.pool.servers):
            raise self._given_up(
                EngineLateError,
                f"{server.root} asks to wait {asked:g} s, longer than this call has left of its "
                f"{self._settings.request_seconds:g} s: ask it later, or less at a time",
                tries,
            )

    def _given_up(self, kind: type[EngineError], problem: str, tries: _Tries) -> EngineError:
        """The error of a call. If no server can be reached the engine is dead: no other call is answered either."""
        said = "; ".join(f"{server.root}: {server.problem}" for server in self.pool.servers if server.problem)
        message = f"{problem}; {said}" if said else problem
        if self.pool.is_unreachable_since(tries.lost_at):
            return EngineDeadError(f"no server can be reached: {message}")
        return kind(message)

    def _address(self, server: Server, route: str) -> URL:
        """Parsed once: that takes longer than the rest of what is done here for a call."""
        key = (server.root, route)
        if key not in self._addresses:
            self._addresses[key] = URL(f"{server.root}{route}")
        return self._addresses[key]


def refused_key(server: Server, reply: Reply) -> str:
    """What to say of a server that refuses the key."""
    return (
        f"{server.root} refuses the key (status {reply.status}): {reply.message}; give another one as http.api_key of "
        "the settings, or in the variable that the command reads, LITELLM_API_KEY or `collect`'s --api-key-variable"
    )
