"""Servers of tests in threads of the test's own process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from aiohttp import web

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class Answering(BaseHTTPRequestHandler):
    """A handler without a log: a test's output is its own."""

    def body(self) -> bytes:
        """What was sent with the request."""
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        """Send `content`. Underscores in the names of headers stand for hyphens."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """`server`, in a thread, until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def loop_in_a_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """An event loop of its own until the block ends: what is called with a coroutine returns its result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def application(app: web.Application, port: int = 0) -> Iterator[int]:
    """The port of `app`, served in a thread until the block ends."""
    with loop_in_a_thread() as run:
        runner = run(started(app, port))
        try:
            yield runner.addresses[0][1]
        finally:
            run(runner.cleanup())


async def started(app: web.Application, port: int) -> web.AppRunner:
    """Serve `app` in this loop. Nobody waits at the end for answers that are still slow."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    return runner
