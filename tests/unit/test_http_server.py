"""What an HTTP server refuses when it starts."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from uvicorn._types import ASGI3Application

from rollstream.http.keys import Keys
from rollstream.http.server import Address, HttpServer
from rollstream.http.settings import GuardSettings
from rollstream.schemas.errors import ConfigurationError
from tests.harness.waits import in_a_loop


async def answering(_scope: Any, _receive: Any, _send: Any) -> None:
    """Never asked."""


async def greeting(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def a_server(
    host: str = "127.0.0.1", port: int = 0, max_connections: int = 10, app: ASGI3Application = answering
) -> HttpServer:
    return HttpServer(
        app,
        name="unit",
        address=Address(host=host, port=port),
        guard=GuardSettings(max_connections=max_connections),
        keys=Keys({}, "127.0.0.1"),
        routes=(),
    )


@pytest.fixture
def _few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@in_a_loop
async def test_a_port_that_is_taken_is_refused_with_the_remedy() -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of unit can't be had at 127.0.0.1: .*set another"):
            await a_server(port=port).start()


@in_a_loop
async def test_a_host_of_another_machine_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"at 203.0.113.7: .* or another host"):
        await a_server(host="203.0.113.7").start()
    with pytest.raises(ConfigurationError, match=r"'no.such.invalid' of unit is no address"):
        await a_server(host="no.such.invalid").start()


@in_a_loop
async def test_a_server_that_has_closed_listens_no_more() -> None:
    server = a_server()
    port = await server.start()
    with closing(socket.create_connection(("127.0.0.1", port))):
        await server.drain(5)
        await server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@in_a_loop
async def test_an_idle_connection_is_kept_for_longer_than_clients_keep_it_and_then_closed() -> None:
    """Else who takes it up again just then has a call broken off that may have arrived. httpx keeps it for 5 s."""
    server, loop = a_server(app=greeting), asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
    clock, ahead = loop.time, 0.0
    loop.time = lambda: clock() + ahead  # type: ignore[method-assign]
    try:
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: unit\r\n\r\n")
            assert await reader.readuntil(b"hello")
            ahead += 6.0
            await asyncio.sleep(0)
        ahead += 10.0
        assert await reader.read() == b""
    finally:
        writer.close()
        await server.close()


@pytest.mark.usefixtures("_few_files")
def test_more_connections_than_files_raise_the_soft_bound_up_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    a_server(max_connections=1000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1000


def test_more_connections_than_files_that_may_be_open_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024, 4096))
    with pytest.raises(ConfigurationError, match=r"4096 files .* guard.max_connections needs 65\d\d\d: raise the"):
        a_server(max_connections=65_000)
