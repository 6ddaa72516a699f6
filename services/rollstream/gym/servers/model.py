"""A model server: Gym's routes before an OpenAI-compatible API, with the model and the key that the settings name.

`openai_model` passes `/v1/responses` on; `vllm_model` makes a chat of it, which more servers speak.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from uvicorn._types import ASGI3Application

from rollstream.engines.http.replies import Reply
from rollstream.gym.servers.answers import application, object_of, refused
from rollstream.gym.servers.calls import JsonCalls, is_passing
from rollstream.gym.servers.chat import WITH_TOKENS, chat_of, response_of_chat
from rollstream.gym.servers.settings import ModelSettings

RESPONSES: Final = "/v1/responses"
CHAT: Final = "/v1/chat/completions"
ROUTES: Final = (RESPONSES, CHAT)


class ModelServer:
    """Asks `calls`; `speaks_chat`: the API has chats alone."""

    def __init__(self, settings: ModelSettings, calls: JsonCalls, *, speaks_chat: bool) -> None:
        self._settings = settings
        self._calls = calls
        self._speaks_chat = speaks_chat
        self._numbers = count()

    def app(self) -> ASGI3Application:
        """The application."""
        return application({RESPONSES: self._responses, CHAT: self._chat})

    async def _responses(self, request: Request) -> Response:
        asked = _whole(object_of(request))
        if not self._speaks_chat:
            return _passed_on(await self._ask("/responses", asked))
        has_tokens = bool(self._settings.return_token_id_information)
        reply = await self._ask("/chat/completions", {**chat_of(asked), **(WITH_TOKENS if has_tokens else {})})
        if not reply.is_ok:
            return _passed_on(reply)
        return JSONResponse(response_of_chat(asked, reply.fields, has_tokens=has_tokens))

    async def _chat(self, request: Request) -> Response:
        return _passed_on(await self._ask("/chat/completions", _whole(object_of(request))))

    async def _ask(self, route: str, asked: Mapping[str, Any]) -> Reply:
        urls = self._settings.base_url
        url = urls[next(self._numbers) % len(urls)].rstrip("/") + route
        templates = self._settings.chat_template_kwargs
        own = {} if templates is None else {"chat_template_kwargs": dict(templates)}
        body = {**asked, **own, **(self._settings.extra_body or {}), "model": self._settings.model}
        return await self._calls.post(url, body)


def _whole(asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("stream"):
        raise refused("stream: answers come as a whole here; leave it out")
    return asked


def _passed_on(reply: Reply) -> Response:
    """The reply as it came. One that says nothing of the request is the API's fault: 502."""
    if reply.body is None or reply.refuses_key or is_passing(reply) or not 200 <= reply.status < 500:
        why = f"the model's API answered {reply.status}: {reply.message}"
        raise refused(why, 502, "api")
    return JSONResponse(reply.body, reply.status)
