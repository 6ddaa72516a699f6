"""HTTP servers of others as child processes: they are ready when a path of theirs answers with 200."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import wait_until

START_SECONDS = 280.0
"""Their imports alone take half a minute where nothing else runs."""


@contextmanager
def serving(command: Sequence[str], health: str, *, log: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Run `command` as long as the block, which begins when the URL `health` answers."""
    with ready(start_process(list(command), log=log, env=env), health):
        yield


@contextmanager
def ready(server: StartedProcess, health: str) -> Iterator[None]:
    """The block begins when the URL `health` answers; the server ends after it."""
    try:
        wait_until(
            lambda: server.has_ended or _is_ready(health),
            lambda: f"{health} to answer; log:\n{server.said()[-3000:]}",
            START_SECONDS,
            every_seconds=0.5,
        )
        assert not server.has_ended, server.said()[-3000:]
        yield
    finally:
        try:
            server.terminate()
        finally:
            server.kill()  # one that is still starting may not answer to the other signal


def _is_ready(health: str) -> bool:
    try:
        return httpx.get(health, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
