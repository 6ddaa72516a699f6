"""A server of tools, a process of its own: sessions count, and its log has all that it did to them.

It knows sessions by the headers of `tools/wire.py`. A session stays open until it is closed, whoever opened it; who
comes with a lower attempt than the highest that was seen is refused. `add` is idempotent by the key of a call.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TextIO
from urllib.parse import unquote

from aiohttp import web

from rollstream.tools.wire import ATTEMPT_HEADER, SESSION_HEADER
from tests.harness.threads import started

Kind = Literal["opened", "taken over", "added", "repeated", "verified", "closed", "fenced", "unknown"]
FENCED_STATUS: Final = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the server did. `at`: monotonic seconds, of the whole machine."""

    at: float
    kind: Kind
    session: str
    attempt: int
    key: str


def events(log: Path) -> list[Event]:
    """All that the server did so far."""
    return [Event(**json.loads(line)) for line in log.read_text().splitlines() if line.endswith("}")]


def open_sessions(done: Iterable[Event], *, opened_until: float = math.inf, closed_until: float = math.inf) -> set[str]:
    """Sessions that were opened and not closed, each until then."""
    found: set[str] = set()
    for event in done:
        if event.kind == "opened" and event.at <= opened_until:
            found.add(event.session)
        if event.kind == "closed" and event.at <= closed_until:
            found.discard(event.session)
    return found


@dataclass(eq=False)
class SessionServer:
    """The open sessions, each with its total after each call, and the highest attempt at each that was ever seen."""

    log: TextIO
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        """Of any route. Nothing here waits, so that calls do not overtake each other."""
        body = await request.json()
        session, attempt = unquote(request.headers[SESSION_HEADER]), int(request.headers[ATTEMPT_HEADER])

        def note(kind: Kind) -> None:
            event = {"at": time.monotonic(), "kind": kind, "session": session, "attempt": attempt}
            self.log.write(json.dumps({**event, "key": body.get("key", "")}) + "\n")
            self.log.flush()

        if attempt < self.attempts.get(session, 0):
            note("fenced")
            return web.Response(status=FENCED_STATUS, text=f"attempt {self.attempts[session]} has the session")
        self.attempts[session] = attempt
        return self._did(request.match_info["route"], session, body, note)

    def _did(self, route: str, session: str, body: dict[str, Any], note: Callable[[Kind], None]) -> web.Response:
        if route == "seed_session":
            note("taken over" if session in self.totals else "opened")
            self.totals.setdefault(session, {})
            return web.json_response({})
        if route == "close_session":
            note("closed")
            self.totals.pop(session, None)
            return web.json_response({})
        if (totals := self.totals.get(session)) is None:
            note("unknown")
            return web.Response(status=404, text="no such session")
        if route == "verify":
            note("verified")
            return web.json_response({"reward": float(len(totals))})
        key = body["key"]
        note("repeated" if key in totals else "added")
        return web.json_response({"total": totals.setdefault(key, len(totals) + 1)})


def serve(port: int, log: Path) -> None:
    """Be the server until the process is killed."""

    async def run() -> None:
        with log.open("a") as stream:
            app = web.Application()
            app.add_routes([web.post("/{route}", SessionServer(stream).answer)])
            await started(app, port)
            await asyncio.Event().wait()

    asyncio.run(run())
