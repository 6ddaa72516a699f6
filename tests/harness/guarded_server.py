"""A bare application behind the guard of our HTTP servers, in a process of its own, for clients that mean harm.

`python -m tests.harness.guarded_server BOUNDS` prints the ports of server and metrics, and drains at SIGTERM.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr

from rollstream.http.keys import ClientKey, Keys
from rollstream.http.middleware import client_of, json_of
from rollstream.http.server import Address, HttpServer
from rollstream.http.settings import GuardSettings
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from tests.harness.processes import StartedProcess, start_process
from tests.harness.scraping import scraped
from tests.harness.waits import wait_until

KEYS = {"alice": "alice-0123456789-0123456789", "bob": "bob-0123456789-0123456789-01"}
ROUTES = ("/echo", "/hold", "/release", "/slow", "/endless", "/fails", "/v1/messages")
DRAIN_SECONDS = 30.0
SLOW_SECONDS = 0.05
"""What an answer at `/slow` takes: that of a small model, a few tokens long."""


@dataclass(frozen=True, kw_only=True)
class GuardedServer:
    """The process and its ports."""

    process: StartedProcess
    port: int
    health_port: int

    @property
    def rss_bytes(self) -> int:
        """The memory that it holds now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def refused(self, reason: str) -> int:
        """How many requests or connections it counts as refused for `reason`."""
        return self._number("refused_total", reason=reason)

    def gauge(self, name: str) -> int:
        """One of the gauges of `rollstream.http.metrics`."""
        return self._number(name)

    def _number(self, name: str, **labels: str) -> int:
        found = scraped(self.health_port, f"rollstream_http_{name}", server="bare", **labels)
        assert found is not None, f"no series {name} {labels}"
        return int(found)


@contextmanager
def a_guarded_server(log: Path, **bounds: Any) -> Iterator[GuardedServer]:
    """The server with these `GuardSettings`, until the block ends."""
    words = (sys.executable, "-m", "tests.harness.guarded_server", json.dumps(bounds))
    process = start_process(words, log=log)
    try:
        ports = wait_until(lambda: re.search(r"ports (\d+) (\d+)", process.said()), process.said)
        assert ports is not None
        yield GuardedServer(process=process, port=int(ports[1]), health_port=int(ports[2]))
    finally:
        process.kill()


class _Application:
    """Echoes, waits, holds, streams without an end, or fails, as the path says."""

    def __init__(self) -> None:
        self._released = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"]:
            case "/fails":
                raise RuntimeError("this application fails")
            case "/hold":
                await _first_of(self._released.wait(), _left(receive))
            case "/slow":
                await asyncio.sleep(SLOW_SECONDS)
            case "/release":
                self._released.set()
            case "/endless":
                await _endless(receive, send)
                return
        name, key = client_of(scope)
        headers = sorted(name.decode() for name, _ in scope["headers"])
        told = {"client": name, "tenant": key.tenant, "headers": headers, "json": json_of(scope)}
        status = 404 if scope["path"] == "/nowhere" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})


async def _endless(receive: Any, send: Any) -> None:
    leaving = asyncio.ensure_future(_left(receive))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not leaving.done():
        await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})
        # To a client that has left, `send` returns at once.
        await asyncio.sleep(0)


async def _left(receive: Any) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(one) for one in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _serve(bounds: Mapping[str, Any]) -> None:
    stop, health = Stop(), Health()
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    holders = {name: ClientKey(key=SecretStr(key), tenant=f"{name}-tenant") for name, key in KEYS.items()}
    server = HttpServer(
        _Application(),
        name="bare",
        address=Address(host="127.0.0.1", port=0),
        guard=GuardSettings(**bounds),
        keys=Keys(holders, "127.0.0.1"),
        routes=ROUTES,
        stripped=("x-request-id",),
    )
    sys.stdout.write(f"ports {await server.start()} {health.serve('127.0.0.1', 0)}\n")
    sys.stdout.flush()
    await stop.asked()
    await server.drain(DRAIN_SECONDS)
    await server.close()
    health.close()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
