"""What strangers do to an HTTP server of ours, and what others see of it meanwhile.

`python -m tests.hostile.attacks` does each to a bare application behind the guard with its default bounds, and prints
of each the median time of another client's call of 50 ms during it ÷ before it, and the memory that the server took.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from tests.harness.guarded_server import KEYS, a_guarded_server
from tests.harness.raw_client import RawAnswer, a_request, connected, exchanged
from tests.harness.waits import wait_until

MIB: Final = 2**20
_HELD_SECONDS: Final = 60.0
_FEW_CONNECTIONS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A server that is attacked: a path that takes POST, and the key of an attacker who has one."""

    port: int
    path: str
    key: str
    pid: int

    def request(self, body: bytes = b"", **headers: str) -> bytes:
        """With its key. Underscores in names of headers stand for hyphens; an empty one is left out."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return a_request(self.path, body, key=self.key, headers=named)

    @property
    def rss_bytes(self) -> int:
        """The memory that its process holds now."""
        return int(psutil.Process(self.pid).memory_info().rss)


def idle(victim: Victim, connections: int = 1000) -> None:
    """Connect, and send nothing."""
    _held(victim, b"", connections)


def half_a_header(victim: Victim, connections: int = 200) -> None:
    """Begin a request, and never end its headers."""
    _held(victim, b"POST / HTTP/1.1\r\nx-half: ", connections)


def endless_header(victim: Victim) -> None:
    """A header of 48 MB."""
    _sent(victim, b"POST / HTTP/1.1\r\nx-long: " + b"a" * (48 * MIB))


def large_body(victim: Victim) -> None:
    """A body of 100 MB, declared."""
    _sent(victim, victim.request(b"x" * (100 * MIB)))


def large_chunked_body(victim: Victim) -> None:
    """A body of 100 MB in chunks, its length not said."""
    chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
    _sent(victim, victim.request(content_length="", transfer_encoding="chunked") + chunk * 100 + b"0\r\n\r\n")


def byte_by_byte(victim: Victim, connections: int = 50) -> None:
    """Bodies of which a byte comes each half a second."""
    with _connections(victim, connections) as held:
        for connection in held:
            connection.sendall(victim.request(content_length="1000"))
        while True:
            time.sleep(0.5)
            for connection in held:
                with suppress(OSError):
                    connection.sendall(b" ")


def reads_nothing(victim: Victim, connections: int = 50) -> None:
    """Ask again and again, and take no answer."""
    _held(victim, victim.request(b"{}") * 200, connections)


def hostile_json(victim: Victim) -> None:
    """Bodies that take long to read, or break who reads them."""
    for body in HOSTILE_JSON:
        exchanged(victim.port, victim.request(body))


def foreign_keys(victim: Victim) -> None:
    """Keys that nobody has."""
    for number in range(100):
        exchanged(victim.port, a_request(victim.path, b"{}", key=f"guessed-key-{number:024d}"))


ATTACKS: Final[tuple[Callable[[Victim], None], ...]] = (
    idle,
    half_a_header,
    endless_header,
    large_body,
    large_chunked_body,
    byte_by_byte,
    reads_nothing,
    hostile_json,
    foreign_keys,
)

HOSTILE_JSON: Final = (
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b'["\\ud800"]',
    b'{"model": "a", "model": "b"}',
    b"[NaN]",
    b'{"n": 1e999}',
    b"9" * 100_000,
    b'{"model": "\xff"}',
    b"[" + b"[]," * 1_000_000 + b"1]",
    b"{",
    b"null, null",
)
"""What is no JSON for our servers."""


@contextmanager
def attacked(attack: Callable[[Victim], None], victim: Victim) -> Iterator[None]:
    """The attack goes on, in a process of its own, while the block runs."""
    context = multiprocessing.get_context("fork")
    attacker = context.Process(target=_again_and_again, args=(attack, victim), daemon=True)
    attacker.start()
    try:
        yield
    finally:
        attacker.kill()
        attacker.join()


def _again_and_again(attack: Callable[[Victim], None], victim: Victim) -> None:
    while True:
        with suppress(OSError):
            attack(victim)


def _held(victim: Victim, sent: bytes, connections: int) -> None:
    with _connections(victim, connections) as held:
        for connection in held:
            with suppress(OSError):
                connection.sendall(sent)
        time.sleep(_HELD_SECONDS)


@contextmanager
def _connections(victim: Victim, number: int) -> Iterator[list]:  # type: ignore[type-arg]
    with ExitStack() as stack:
        yield [stack.enter_context(connected(victim.port)) for _ in range(number)]


def _sent(victim: Victim, content: bytes) -> RawAnswer:
    return exchanged(victim.port, content)


def _median_seconds(ask: Callable[[], None], calls: int) -> float:
    def seconds() -> float:
        began = time.monotonic()
        ask()
        return time.monotonic() - began

    return median(seconds() for _ in range(calls))


def measured(attack: Callable[[Victim], None], victim: Victim, ask: Callable[[], None]) -> dict[str, float]:
    """Another client's time during the attack ÷ before it, and the memory that the server took."""
    before, rss = _median_seconds(ask, 40), victim.rss_bytes
    with attacked(attack, victim):
        time.sleep(1.0)
        during, held = _median_seconds(ask, 40), victim.rss_bytes
    return {"ratio": round(during / before, 2), "before_ms": round(1e3 * before, 2), "mib": (held - rss) // MIB}


def main() -> None:
    """Print the table as JSON."""
    with tempfile.TemporaryDirectory() as directory, a_guarded_server(Path(directory) / "log") as server:
        victim = Victim(port=server.port, path="/echo", key=KEYS["alice"], pid=server.process.pid)

        def ask() -> None:
            assert exchanged(server.port, a_request("/slow", b'{"n": 1}', key=KEYS["bob"])).status == 200

        found = {}
        for attack in ATTACKS:
            wait_until(lambda: server.gauge("connections") < _FEW_CONNECTIONS, "the attack before to be over")
            found[attack.__name__] = measured(attack, victim, ask)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
