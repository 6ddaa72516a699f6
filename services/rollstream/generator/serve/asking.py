"""The layer before the routes: which calls there are, whose each is, and which are refused at once.

A client says which conversation a call belongs to, and which person it answers, in one of these ways, the first counts:
the headers `x-session-id` and `x-subject`; the path, `/s/SESSION/v1/…`, for clients that can set no header; the fields
`metadata.session_id`, and `metadata.user_id` or `user`. A person's id is kept as its HMAC alone.
"""

import hmac
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pydantic import SecretStr
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPScope,
    Scope,
)

from rollstream.engines.tokenizer import control_token_in
from rollstream.generator.serve.call import CALLER, Caller, Recorder
from rollstream.generator.serve.lane import ServingLane
from rollstream.generator.serve.said import (
    CHAT,
    COMPLETIONS,
    MAX_ID_CHARACTERS,
    MESSAGES,
    RESPONSES,
    messages_of,
    named,
    refused,
    tools_of,
)
from rollstream.http.middleware import client_of, json_of
from rollstream.http.refusals import error_content
from rollstream.schemas.errors import SpoolFullError
from rollstream.schemas.prompt import Message

MODELS: Final = "/v1/models"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
ROUTES: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, MODELS)
"""Paths that are answered, all others are not."""
STRIPPED_HEADERS: Final = ("x-request-id", "x-vllm-priority", "x-data-parallel-rank")
"""vLLM would name, rank and place requests by them: an abort by a name ends all requests of that name."""

_ANSWERING: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
_SESSION_PREFIX: Final = "/s/"


class CallLayer:
    """An ASGI application: `routes` behind this layer. It stands in the guard of `rollstream.http`, which it needs."""

    def __init__(
        self,
        routes: ASGI3Application,
        *,
        lane: ServingLane,
        recorder: Recorder,
        subject_secret: SecretStr | None,
        reads_control_tokens: bool,
    ) -> None:
        """`reads_control_tokens`: `routes` take a control token for one also where a message's text holds it."""
        self._routes = routes
        self._reads_control_tokens = reads_control_tokens
        self._lane = lane
        self._recorder = recorder
        self._secret = subject_secret

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http", "lifespan and websockets are off"
        session, path = _session_in(scope["path"])
        method = "GET" if path == MODELS else "POST"
        if path not in ROUTES:
            await refuse(scope, send, HTTPStatus.NOT_FOUND, f"there is no such route: there are {', '.join(ROUTES)}")
        elif scope["method"] != method:
            await refuse(scope, send, HTTPStatus.METHOD_NOT_ALLOWED, f"use {method}")
        elif path == MODELS:
            await self._routes(_at(scope, path), receive, send)
        else:
            await self._answer(_at(scope, path), session, receive, send)

    async def _answer(
        self, scope: HTTPScope, session: str, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        body = json_of(scope)
        if not isinstance(body, dict):
            await refuse(scope, send, HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
            return
        if (why := refused(body)) is not None:
            await refuse(scope, send, HTTPStatus.BAD_REQUEST, why)
            return
        if scope["path"] in _ANSWERING:
            if (why := self._busy()) is not None:
                await refuse(scope, send, HTTPStatus.SERVICE_UNAVAILABLE, why)
                return
            try:
                CALLER.set(self._caller(scope, session, body))
            except ValueError as error:
                await refuse(scope, send, HTTPStatus.BAD_REQUEST, str(error))
                return
        await self._routes(scope, receive, send)

    def _busy(self) -> str | None:
        if self._lane.is_full:
            return "too many calls wait for the engine: try again"
        try:
            self._recorder.refuse_if_full()
        except SpoolFullError:
            return "answers can't be recorded now, so none is given: try again"
        return None

    def _caller(self, scope: HTTPScope, session: str, body: dict[str, Any]) -> Caller:
        """Raises `ValueError` for what can't be recorded."""
        name, key = client_of(scope)
        said = {header: value.decode("latin-1") for header, value in scope["headers"]}
        session = said.get(b"x-session-id") or session or named(body, "metadata.session_id")
        subject = said.get(b"x-subject") or named(body, "metadata.user_id", "user")
        for what, found in (("session", session), ("subject", subject)):
            if len(found) > MAX_ID_CHARACTERS or not found.isprintable():
                raise ValueError(f"the {what} has {len(found)} characters: at most {MAX_ID_CHARACTERS}, all printable")
        messages, tools = messages_of(scope["path"], body), tools_of(body)
        if self._reads_control_tokens and scope["path"] != COMPLETIONS:
            _refuse_control_tokens(messages, tools)
        return Caller(
            name=name,
            key=key,
            route=scope["path"],
            session=session,
            subject=self._hidden(subject),
            messages=messages,
            tools=tools,
        )

    def _hidden(self, subject: str) -> str:
        """HMAC-SHA256 of a person's id, in hex; empty without a secret."""
        if not subject or self._secret is None:
            return ""
        return hmac.digest(self._secret.get_secret_value().encode(), subject.encode(), "sha256").hex()


def _refuse_control_tokens(messages: Sequence[Message], tools: Sequence[str]) -> None:
    """Raise `ValueError` for a text that would end its turn, and forge another one."""
    if (found := control_token_in(messages, tools)) is not None:
        raise ValueError(
            f"{found!r} is a control token for many models, which no text of a message may hold: take it out, or ask "
            f"{COMPLETIONS}, where the whole prompt is yours"
        )


def _session_in(path: str) -> tuple[str, str]:
    """The session that a path names, empty if it names none; and the path without it."""
    if not path.startswith(_SESSION_PREFIX):
        return "", path
    session, _, rest = path.removeprefix(_SESSION_PREFIX).partition("/")
    return session, f"/{rest}"


def _at(scope: HTTPScope, path: str) -> HTTPScope:
    return {**scope, "path": path, "raw_path": quote(path).encode()}


async def refuse(scope: HTTPScope, send: ASGISendCallable, status: HTTPStatus, message: str) -> None:
    """Answer with an error, in the shape that clients of this path expect."""
    body = json.dumps(error_content(scope["path"], status, message, status.name.lower())).encode()
    await send_whole(send, body, status=status)


async def send_whole(
    send: ASGISendCallable,
    body: bytes,
    *,
    status: HTTPStatus = HTTPStatus.OK,
    content_type: bytes = b"application/json",
) -> None:
    """Send an answer at once."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
