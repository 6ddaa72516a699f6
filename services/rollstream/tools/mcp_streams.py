"""How messages of the Model Context Protocol travel, with bounds on what a server sends, which the package has not."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import anyio
import httpx2
import mcp_types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from rollstream.process import parent
from rollstream.process.masking import harmless_variables

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""What a client reads from and writes to, as long as the block runs."""
Lost = Callable[[str], None]
"""Told why a server is not listened to any more."""
_GRACE_SECONDS: Final = 2.0
_END_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10.0


@asynccontextmanager
async def over_http(
    url: str, headers: Mapping[str, str], most_bytes: int, lost: Lost
) -> AsyncGenerator[tuple[Any, Any]]:
    """Messages to and from a server at a URL. A reply beyond `most_bytes` ends the connection."""
    client = httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        # The whole of a call has a deadline; a stream may be silent for long.
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        transport=_BoundedTransport(most_bytes, lost),
        # A session is named by a header of the protocol; what else a server would have us remember is not needed.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
    )
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=most_bytes) as streams:
        yield streams


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Breaks off a reply that is too long or compressed: a few bytes may decompress to gigabytes."""

    def __init__(self, most_bytes: int, lost: Lost) -> None:
        super().__init__(trust_env=False)
        self._most_bytes = most_bytes
        self._lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The reply, whose content is counted while it is read."""
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            self._lost(f"{type(error).__name__}: {error}")
            raise
        if response.status_code >= 400:
            self._lost(f"status {response.status_code}")
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            self._lost("a reply is compressed, although only identity was accepted")
            await response.aclose()
            raise httpx2.ReadError("a compressed reply")
        response.stream = _BoundedContent(response.stream, self._most_bytes, self._lost)
        return response


class _BoundedContent(httpx2.AsyncByteStream):
    def __init__(self, content: Any, most_bytes: int, lost: Lost) -> None:
        self._content = content
        self._left = most_bytes
        self._lost = lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._content:
            self._left -= len(chunk)
            if self._left < 0:
                self._lost("a reply has more bytes than max_answer_bytes")
                raise httpx2.ReadError("a reply that is too long")
            yield chunk

    async def aclose(self) -> None:
        await self._content.aclose()


@asynccontextmanager
async def over_pipes(
    command: Sequence[str], variables: Mapping[str, str], most_bytes: int, lost: Lost
) -> AsyncGenerator[tuple[Any, Any]]:
    """Messages to and from a server that is started, and killed at the end with all that it started.

    Its standard error is this process's. A line beyond `most_bytes`, or that is no message, ends the connection.
    """
    # The kernel ends it with this process.
    ends_with_us = (sys.executable, "-I", "-S", parent.__file__, str(os.getpid()), "-", "0")
    process = await asyncio.create_subprocess_exec(
        *ends_with_us, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=most_bytes,
        start_new_session=True, env={**harmless_variables(), **variables},
    )  # fmt: skip
    try:
        heard, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        async with received, sent, anyio.create_task_group() as group:
            group.start_soon(_listen, process, heard, lost)
            group.start_soon(_speak, process, to_send)
            yield received, sent
            group.cancel_scope.cancel()
    finally:
        await _ended(process)


async def _listen(process: asyncio.subprocess.Process, heard: Any, lost: Lost) -> None:
    assert process.stdout is not None
    async with heard:
        try:
            while line := await process.stdout.readline():
                message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                await heard.send(SessionMessage(message))
            lost("the server ended, or closed its output")
        except ValueError as error:
            # Of the reader, for a long line; of pydantic, whose message holds what was sent.
            told = str(error)[:200]
            lost(f"the server wrote a line that is too long or no message; logs belong to standard error: {told}")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


async def _speak(process: asyncio.subprocess.Process, to_send: Any) -> None:
    assert process.stdin is not None
    async with to_send:
        with contextlib.suppress(OSError):  # it has ended, which the other direction says
            async for said in to_send:
                text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{text}\n".encode())
                await process.stdin.drain()


async def _ended(process: asyncio.subprocess.Process) -> None:
    """A server ends when its input does; one that does not is killed, and whatever it started in any case."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(_END_SECONDS):
        # Up to its end, which a pipe that nobody reads never sees.
        while process.stdout is not None and await process.stdout.read(2**16):
            pass
        await process.wait()
