"""Tools of kind `mcp`: a server of the Model Context Protocol, at a URL, or a process of its own for each session.

A client of the package belongs to the task that opened it. So each session has a task, which is told to end.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

import mcp_types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rollstream.process.settings.tools import ToolSettings
from rollstream.schemas.errors import ToolError
from rollstream.tools.mcp_streams import Streams, over_http, over_pipes
from rollstream.tools.sessions import MAX_SCHEMAS, Said, mistake
from rollstream.tools.wire import session_headers

# Of JSON-RPC; a server's own codes lie outside.
_RESERVED_CODES: Final = range(-32768, -31999)
_KINDS: Final = {"image": "image", "audio": "audio", "resource": "resource", "resource_link": "link to a resource"}


class McpTools:
    """Connects to one server, or starts one for each session."""

    def __init__(self, settings: ToolSettings) -> None:
        self._settings = settings

    async def start(self) -> None:
        """Quiet the client's log: a line for each request, and what a server sends that is no message."""
        for name in ("httpx2", "mcp"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    async def connect(self, session_id: str, attempt: int, _task: Mapping[str, Any]) -> "McpConnection":
        """A session with its tools listed. A server that can't be reached is tried again."""
        async for trying in _tries(self._settings.max_tries):
            with trying:
                connection = McpConnection(self._settings, session_id, attempt)
                try:
                    await connection.opened()
                except BaseException:
                    await connection.end()
                    raise
        return connection

    async def close(self) -> None:
        """Nothing is shared."""


class McpConnection:
    """One session of a server (`Connection`)."""

    def __init__(self, settings: ToolSettings, session_id: str, attempt: int) -> None:
        self._settings = settings
        self._why = ""
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(self._streams(session_id, attempt)))
        self.schemas: tuple[str, ...] = ()

    async def opened(self) -> None:
        """Wait for it. Raises `ToolError`."""
        either: tuple[asyncio.Future[Any], ...] = (self._client, self._running)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._client.done():
            raise self._lost("no session could be opened")

    async def call(self, name: str, arguments: Mapping[str, Any], *, is_replayable: bool) -> Said:
        """What the tool says."""
        async for trying in _tries(self._settings.max_tries if is_replayable else 1):
            with trying:
                return await self._called(name, arguments)
        raise AssertionError("there is at least one try")

    async def verify(self, said: Mapping[str, Any]) -> None:
        """The protocol has no verdict."""

    async def leave(self) -> None:
        """As `close`: its connection is the session."""
        await self.end()

    async def close(self) -> None:
        """End the session, and its server if it was started for it."""
        await self.end()

    async def end(self) -> None:
        """Have the session's task end; it is broken off if this is cancelled, or if it is not open yet."""
        self._closing.set()
        if not self._client.done():
            self._running.cancel()
        try:
            await asyncio.wait({self._running})
        finally:
            self._running.cancel()

    def _streams(self, session_id: str, attempt: int) -> Streams:
        settings = self._settings
        options = {name: value.get_secret_value() for name, value in settings.options.items()}
        if settings.url is None:
            return over_pipes(settings.command, options, settings.max_answer_bytes, self._note)
        headers = {**options, **session_headers(session_id, attempt)}
        return over_http(settings.url, headers, settings.max_answer_bytes, self._note)

    async def _run(self, streams: Streams) -> None:
        try:
            async with Client(streams, cache=None) as client:
                self.schemas = await _listed(client)
                self._client.set_result(client)
                await self._closing.wait()
        # Groups of errors, of libraries that are told a stranger's bytes.
        except Exception as error:  # noqa: BLE001
            self._note(_first(error))

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> Said:
        if self._running.done():
            raise self._lost("the session is over")
        if self._settings.url is not None:  # each request has its own connection, and its own reasons
            self._why = ""
        try:
            return _said(await self._client.result().call_tool(name, dict(arguments)))
        except MCPError as error:
            if error.code == mcp_types.INVALID_PARAMS or error.code not in _RESERVED_CODES:
                return mistake(error.message)
            self._note(f"{error.message} ({error.code})")
            raise self._lost(f"{name} failed") from error
        except Exception as error:
            self._note(_first(error))
            raise self._lost(f"{name} gave no readable answer") from error

    def _note(self, why: str) -> None:
        """Keep the first reason: it is the cause of those after it."""
        self._why = self._why or why[:500]

    def _lost(self, doing: str) -> ToolError:
        return ToolError(f"{doing}: {self._why or 'the server closed the connection'}")


def _tries(most: int) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(ToolError),
        stop=stop_after_attempt(most),
        wait=wait_random_exponential(multiplier=0.1, max=5.0),
        reraise=True,
    )


async def _listed(client: Client) -> tuple[str, ...]:
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while len(found) <= MAX_SCHEMAS:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or not page.tools:
            break
    return tuple(map(_schema, found))


def _schema(tool: mcp_types.Tool) -> str:
    described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return json.dumps({"type": "function", "function": described}, ensure_ascii=False)


def _said(result: mcp_types.CallToolResult) -> Said:
    """The texts of an answer; of what is no text its kind, since the model reads text."""
    parts = [one.text if isinstance(one, mcp_types.TextContent) else f"[{_KINDS[one.type]}]" for one in result.content]
    text = "\n".join(parts)
    if not parts and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return Said(text, text if result.is_error else None)


def _first(error: BaseException) -> str:
    """What the first error of nested groups says."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
