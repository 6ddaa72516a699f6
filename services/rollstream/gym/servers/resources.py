"""A resources server: Gym's routes over a class of tools, whose sessions each have an object and a process."""

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from uvicorn._types import ASGI3Application

from rollstream.gym.servers.answers import application, object_of, refused
from rollstream.gym.servers.metrics_route import aggregate
from rollstream.gym.servers.sessions import Sessions
from rollstream.gym.servers.settings import ReverifyMode
from rollstream.http.middleware import json_of
from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import ToolError
from rollstream.schemas.prompt import ToolCall
from rollstream.tools.http import RESERVED
from rollstream.tools.protocol import ToolSession, ToolSet
from rollstream.tools.wire import ATTEMPT_HEADER, SESSION_HEADER

COOKIE: Final = "rollstream_session"
ROUTES: Final = tuple(f"/{name}" for name in sorted(RESERVED - {"mcp"}))
_MAX_ID: Final = 1000
_MAX_ATTEMPT: Final = 2**31


class ResourcesServer:
    """The routes over `sessions`. `tools` opens one for a single call where `mode` says that none is needed."""

    def __init__(self, sessions: Sessions, tools: ToolSet, mode: ReverifyMode) -> None:
        self._sessions = sessions
        self._tools = tools
        self._mode = mode

    def app(self) -> ASGI3Application:
        """The application."""
        posts = {
            "/seed_session": self._seed,
            "/close_session": self._close,
            "/verify": self._verify,
            "/aggregate_metrics": aggregate,
            "/{tool}": self._call,
        }
        return application(posts, {"/reverify_mode": self._reverify_mode})

    async def _seed(self, request: Request) -> Response:
        key, attempt = _session_of(request)
        chosen = key or f"cookie/{uuid4().hex}"
        await self._sessions.seed(chosen, attempt, object_of(request))
        answer = JSONResponse({})
        answer.set_cookie(COOKIE, chosen.partition("/")[2] if chosen.startswith("cookie/") else "", httponly=True)
        return answer

    async def _close(self, request: Request) -> Response:
        key, attempt = _session_of(request)
        was_open = key is not None and await self._sessions.close(key, attempt)
        answer = JSONResponse({"closed": was_open})
        answer.delete_cookie(COOKIE)
        return answer

    async def _call(self, request: Request) -> Response:
        name = request.path_params["tool"]
        body = json_of(request.scope)
        call = ToolCall(call_id="http", name=name, arguments=json.dumps({} if body is None else body))
        async with self._session(request, {}) as session:
            said = await session.call(call)
        status = HTTPStatus.OK if said.error is None else HTTPStatus.BAD_REQUEST
        return Response(said.content.encode(), status, media_type="application/json")

    async def _verify(self, request: Request) -> Response:
        row = object_of(request)
        response = row.get("response")
        if not isinstance(response, dict) or not isinstance(response.get("output"), list):
            raise refused("a row with `response`, whose `output` is a list, is verified; this one has none")
        async with self._session(request, row) as session:
            verdict = await session.verify(row)
        if verdict is None:
            raise refused("the class of this server has no `verify`", HTTPStatus.NOT_IMPLEMENTED, "no_verify")
        _check(verdict)
        return JSONResponse({**row, **verdict})

    async def _reverify_mode(self, request: Request) -> Response:
        return JSONResponse(self._mode)

    @asynccontextmanager
    async def _session(self, request: Request, row: Mapping[str, Any]) -> AsyncIterator[ToolSession]:
        """The request's session, or one for this request alone where none is needed."""
        key, attempt = _session_of(request)
        if key is not None:
            yield await self._sessions.find(key, attempt)
        elif self._mode != "stateless":
            raise refused("no session: POST /seed_session first, and send back its cookie")
        else:
            session = await self._tools.open(uuid4().hex, 0, row)
            try:
                yield session
            finally:
                await session.close()


def _session_of(request: Request) -> tuple[str | None, int]:
    """Key and attempt of the session that the headers or the cookie name; None without one."""
    named = request.headers.get(SESSION_HEADER)
    cookie = request.cookies.get(COOKIE) or None
    if named is None:
        if cookie is not None and len(cookie) > _MAX_ID:
            raise refused(f"the cookie {COOKIE} has more than {_MAX_ID} characters")
        return (None if cookie is None else f"cookie/{cookie}"), 0
    said = request.headers.get(ATTEMPT_HEADER, "0")
    if not 0 < len(named) <= _MAX_ID or not said.isascii() or not said.isdigit() or len(said) > 10:
        raise refused(f"{SESSION_HEADER} has 1 to {_MAX_ID} characters, and {ATTEMPT_HEADER} is a whole number")
    return f"id/{unquote(named)}", min(int(said), _MAX_ATTEMPT)


def _check(verdict: Mapping[str, Any]) -> None:
    """Raises `ToolError` for a verdict without a reward, unless it is masked."""
    reward = verdict.get("reward")
    if reward is None and verdict.get("mask_sample") is True:
        return
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ToolError("`verify` of the class gave no `reward` that is a finite number")
    if abs(reward) > MAX_REWARD:
        raise ToolError(f"`verify` of the class gave a reward beyond ±{MAX_REWARD:g}")
