"""Which server answers the next call: the one with the fewest, of those that do not rest.

A server that can't be reached rests for a bounded time, twice as long after each failure. Then one call alone tries it,
so that the others do not wait for a server that is still gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from rollstream.schemas.errors import EngineDeadError

_LONGEST_REST_SECONDS: Final = 30.0


@dataclass(slots=True, eq=False)
class Server:
    """One server. `root` is its address without `/v1`; `failures` how often in a row it could not be reached.

    `problem`: why its last call failed; empty if it did not.
    `asked_until`: when it may be asked again by its own word, monotonic seconds; `available_at` is bounded.
    `seen_at`: when it last replied to a call, or was last looked at. `replied_at`: when it last replied to a call.
    """

    root: str
    in_flight: int = 0
    failures: int = 0
    problem: str = ""
    available_at: float = 0.0
    asked_until: float = 0.0
    seen_at: float = 0.0
    replied_at: float = 0.0
    is_open: bool = True
    weight_version: int = 0


class ServerPool:
    """The servers, at least one. `close` ends all waiting with `EngineDeadError`."""

    def __init__(self, roots: Sequence[str], *, most: int = 2**31, rest_seconds: float = 0.5) -> None:
        """`most`: calls side by side at one server. `rest_seconds`: its first rest."""
        self.servers = tuple(Server(root) for root in roots)
        self._most = most
        self._rest_seconds = rest_seconds
        self._is_closed = False
        self._changed = asyncio.Event()

    def is_unreachable_since(self, moment: float) -> bool:
        """Whether the last call of every server found nobody, and none of them replied to any call since `moment`."""
        return all(server.failures and server.replied_at < moment for server in self.servers)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[Server]:
        """The least loaded server, once one can be asked; it counts the call as in flight until the block ends."""
        server = await self._next()
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1
            if server.failures or server.in_flight + 1 == self._most:
                self._tell()

    def succeeded(self, server: Server) -> None:
        """Note that the server answered, whatever it said."""
        server.replied_at = time.monotonic()
        if server.failures:
            server.failures = 0
            self._tell()

    def failed(self, server: Server, problem: str) -> None:
        """Note that the server could not be reached, or broke off: it rests."""
        server.failures += 1
        server.problem = problem
        longest = max(self._rest_seconds, _LONGEST_REST_SECONDS)
        self.rest(server, min(self._rest_seconds * 2 ** min(server.failures - 1, 16), longest))

    def rest(self, server: Server, seconds: float) -> None:
        """Ask this server nothing for so long."""
        server.available_at = max(server.available_at, time.monotonic() + seconds)
        self._tell()

    @contextmanager
    def updating(self, server: Server) -> Iterator[None]:
        """Ask this server nothing during the block, which changes its weights."""
        server.is_open = False
        try:
            yield
        finally:
            server.is_open = True
            self._tell()

    def close(self) -> None:
        """No server is asked any more."""
        self._is_closed = True
        self._tell()

    async def _next(self) -> Server:
        while not self._is_closed:
            now = time.monotonic()
            askable = [server for server in self.servers if _can_be_asked(server) and server.in_flight < self._most]
            ready = [server for server in askable if server.available_at <= now]
            if ready:
                return min(ready, key=lambda server: server.in_flight)
            rests = [server.available_at - now for server in askable]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(rests, default=None)):
                    await self._changed.wait()
        raise EngineDeadError("the engine is closed: it asks no server any more")

    def _tell(self) -> None:
        """Wake all that wait for a server."""
        self._changed.set()
        self._changed = asyncio.Event()


def _can_be_asked(server: Server) -> bool:
    return server.is_open and not (server.failures and server.in_flight)
