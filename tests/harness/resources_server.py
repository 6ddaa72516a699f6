"""A resources server of NeMo Gym, over real HTTP, whose sessions are counters; it also misbehaves as it is told."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.harness.threads import application

ADD = json.dumps({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}})
READ = json.dumps({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}})


@dataclass(eq=False)
class Resources:
    """`url` is its address. `log` has what arrived: route, session, body. `faults`: how a route misbehaves, in turn.

    Without `knows_ids` a session is found by its cookie alone, as in NeMo Gym.
    """

    knows_ids: bool = True
    url: str = ""
    log: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    most_open: int = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.add_routes([web.post("/{route}", self._answer)])
        return app

    def count(self, route: str) -> int:
        """How often it was asked."""
        return sum(one[0] == route for one in self.log)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        route, body = request.match_info["route"], await request.json()
        session = request.headers.get("Rollstream-Session", "") if self.knows_ids else ""
        session = session or request.cookies.get("session", "")
        self.log.append((route, session, body))
        faults = self.faults.get(route, [])
        if faults:
            return await self._misbehave(request, faults.pop(0) if len(faults) > 1 else faults[0])
        return self._well(route, session, body, request)

    def _well(self, route: str, session: str, body: dict[str, Any], request: web.Request) -> web.Response:
        if self.knows_ids:
            attempt = int(request.headers["Rollstream-Attempt"])
            if attempt < self.attempts.get(session, 0):
                return web.Response(status=409, text="a higher attempt has it")
            self.attempts[session] = attempt
        if route == "seed_session":
            session = session or uuid4().hex
            self.totals.setdefault(session, 0)
            self.most_open = max(self.most_open, len(self.totals))
            answer = web.json_response({})
            answer.set_cookie("session", session, httponly=True)
            return answer
        if route == "close_session":
            self.totals.pop(session, None)
            return web.json_response({})
        if session not in self.totals:
            return web.Response(status=404, text="no such session")
        if route == "add":
            self.totals[session] += int(body["by"])
        if route == "verify":
            return web.json_response({**body, "reward": float(self.totals[session])})
        return web.json_response({"total": self.totals[session]})

    async def _misbehave(self, request: web.Request, how: str) -> web.StreamResponse:
        if how == "leave":
            assert request.transport is not None
            request.transport.abort()
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "ok":
            route = request.match_info["route"]
            return self._well(route, self.log[-1][1], self.log[-1][2], request)
        if how == "huge":
            return await _huge(request)
        cookies = [("Set-Cookie", f"c{number}={'x' * 100}") for number in range(40)]
        odd = {
            "redirect": lambda: web.Response(status=307, headers={"Location": f"{self.url}/elsewhere"}),
            "cookies": lambda: web.Response(headers=cookies),
            "zipped": lambda: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}),
            "garbage": lambda: web.Response(body=b"\xff{not json"),
            "list": lambda: web.Response(body=b"[1]"),
        }
        return odd[how]() if how in odd else web.Response(status=int(how), text=f"as told: {how}")


async def _huge(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(1600):  # 100 MB
        await answer.write(b"x" * 2**16)
    return answer


@contextmanager
def resources(**options: Any) -> Iterator[Resources]:
    """The server until the block ends."""
    server = Resources(**options)
    with application(server.app()) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server
