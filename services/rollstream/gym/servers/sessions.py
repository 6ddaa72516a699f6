"""The open sessions of a resources server: by the id of a header, or by a cookie that the server chose.

A session is known by its highest attempt; who comes with a lower one is a process that was thought dead (409). What
nobody uses any more is closed.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from rollstream.gym.servers.answers import refused
from rollstream.process.masking import SECRETS
from rollstream.schemas.errors import ToolError
from rollstream.tools.protocol import ToolSession, ToolSet

_LOG = logging.getLogger(__name__)
_MAX_REMEMBERED: Final = 65_536
_SWEEPS: Final = 4
"""A session lives at most a quarter longer than it may."""


@dataclass(slots=True)
class _Held:
    opening: "asyncio.Task[ToolSession]"
    used_at: float = field(default_factory=time.monotonic)


class Sessions:
    """At most `max_sessions` of `tools`, each closed after `idle_seconds` without use."""

    def __init__(self, tools: ToolSet, *, max_sessions: int, idle_seconds: float) -> None:
        self._tools = tools
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._held: dict[str, _Held] = {}
        # Also of sessions that are closed: a late process must not open one again.
        self._attempts: OrderedDict[str, int] = OrderedDict()

    async def seed(self, key: str, attempt: int, row: Mapping[str, Any]) -> None:
        """Open the session, unless it is open: its state goes on. Raises what `ToolSet.open` raises."""
        self._fence(key, attempt)
        if key not in self._held:
            if len(self._held) >= self._max_sessions:
                why = f"all {self._max_sessions} sessions are open: close some, or raise max_sessions"
                raise refused(why, HTTPStatus.SERVICE_UNAVAILABLE, "sessions")
            self._held[key] = _Held(asyncio.create_task(self._tools.open(key, 0, row)))
        await self._opened(key, self._held[key])

    async def find(self, key: str, attempt: int) -> ToolSession:
        """An open session. Raises `RefusedRequestError` for one that is not open here."""
        self._fence(key, attempt)
        held = self._held.get(key)
        if held is None:
            why = "no such session is open: this server was started again, or the session was closed"
            raise refused(why, HTTPStatus.CONFLICT, "session")
        held.used_at = time.monotonic()
        return await self._opened(key, held)

    async def close(self, key: str, attempt: int) -> bool:
        """Close a session; whether it was open."""
        self._fence(key, attempt)
        return await self._close(key)

    async def close_idle(self) -> None:
        """Close what nobody uses, until this is cancelled."""
        while True:
            await asyncio.sleep(self._idle_seconds / _SWEEPS)
            oldest = time.monotonic() - self._idle_seconds
            for key in [key for key, held in self._held.items() if held.used_at < oldest]:
                _LOG.info("a session is closed that nobody used for %g s", self._idle_seconds)
                await self._close(key)

    async def close_all(self) -> None:
        """Close every session, side by side."""
        await asyncio.gather(*map(self._close, list(self._held)), return_exceptions=True)

    def _fence(self, key: str, attempt: int) -> None:
        highest = self._attempts.get(key, 0)
        if attempt < highest:
            raise refused(f"attempt {highest} has this session", HTTPStatus.CONFLICT, "fenced")
        self._attempts[key] = attempt
        self._attempts.move_to_end(key)
        if len(self._attempts) > _MAX_REMEMBERED:
            self._attempts.popitem(last=False)

    async def _opened(self, key: str, held: _Held) -> ToolSession:
        try:
            # Who asked may leave: the session is another's too.
            return await asyncio.shield(held.opening)
        except Exception:
            if self._held.get(key) is held:
                del self._held[key]
            raise

    async def _close(self, key: str) -> bool:
        held = self._held.pop(key, None)
        if held is None:
            return False
        try:
            await (await held.opening).close()
        except ToolError as error:
            _LOG.warning("a session was not closed in time, and is killed: %s", SECRETS.masked(str(error)))
        return True
