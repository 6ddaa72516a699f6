"""Calls of one server by another, or of a model's API: JSON to JSON, bounded in time, bytes and tries."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from pydantic_core import to_json
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
)
from yarl import URL

from rollstream.engines.http.bodies import read_body
from rollstream.engines.http.outgoing import last, open_client, pause
from rollstream.engines.http.replies import Reply
from rollstream.rows.row import MAX_ROW_BYTES
from rollstream.schemas.errors import EngineError, EngineLateError

_PASSES: Final = (408, 425, 429)


class JsonCalls:
    """A client of other servers. What is asked may be asked again: nothing is changed by it."""

    def __init__(self, *, seconds: float, max_tries: int, headers: Mapping[str, str] | None = None) -> None:
        self._seconds = seconds
        self._max_tries = max_tries
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the client. Nothing is asked yet."""
        self._session = open_client(self._headers)

    async def close(self) -> None:
        """Break off what runs."""
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: Mapping[str, Any]) -> Reply:
        """The last reply, whatever its status. Raises `EngineError` if there is none within the deadline."""
        trying = AsyncRetrying(
            retry=retry_if_exception_type(EngineError) | retry_if_result(is_passing),
            stop=stop_after_attempt(self._max_tries),
            wait=pause,
            retry_error_callback=last,
        )
        try:
            async with asyncio.timeout(self._seconds):
                reply: Reply = await trying(self._once, "POST", url, to_json(body))
                return reply
        except TimeoutError as error:
            raise EngineLateError(f"{url} gave no answer within {self._seconds:g} s") from error

    async def get(self, url: str) -> Reply:
        """One reply. Raises `EngineError`."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._once("GET", url, None)
        except TimeoutError as error:
            raise EngineLateError(f"{url} gave no answer within {self._seconds:g} s") from error

    async def _once(self, method: str, url: str, content: bytes | None) -> Reply:
        if self._session is None or self._session.closed:
            raise EngineError("the client is closed")
        try:
            async with self._session.request(method, URL(url), data=content, allow_redirects=False) as response:
                found = await read_body(response, MAX_ROW_BYTES)
                return Reply.read(response.status, found, response.headers.get("Retry-After"), MAX_ROW_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{url}: {type(error).__name__}: {str(error)[:300]}") from error
        # Whatever else the client raises, the bytes of a stranger caused it.
        except (ValueError, ArithmeticError, LookupError, TypeError) as error:
            raise EngineError(f"{url} gave no readable reply: {type(error).__name__}: {str(error)[:300]}") from error


def is_passing(reply: Reply) -> bool:
    """Whether another try may find another answer: the server, not the request, is at fault."""
    return reply.status >= 500 or reply.status in _PASSES
