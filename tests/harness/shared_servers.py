"""What all processes of a test run share: a broker, a Redis, and the process that stages are forked from.

The process that hands out the tests starts each of them when the first test of any process asks for it, and stops it at
the end of the run. A broker of its own cost each process 5 s of a core to start, and a fortieth of a core while it ran.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import Any, Final

from rollstream.local.kafka import KafkaCluster
from rollstream.local.kafka_properties import plan_cluster
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from tests.harness.fork_server import a_fork_server


@contextmanager
def a_broker(directory: Path) -> Iterator[str]:
    """Bootstrap servers of one broker, which runs as long as the block."""
    cluster = KafkaCluster(directory, plan_cluster(1))
    try:
        cluster.start()
        yield cluster.bootstrap_servers
    finally:
        cluster.stop()


@contextmanager
def a_redis(directory: Path) -> Iterator[str]:
    """URL of one Redis, which runs as long as the block."""
    server = RedisServer(directory, free_ports(1)[0])
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


Start = Callable[[Path], AbstractContextManager[str]]
SERVERS: Final[Mapping[str, Start]] = {"kafka": a_broker, "redis": a_redis, "forks": a_fork_server}

_addresses: dict[str, str] = {}


class SharedServer:
    """One server, which starts when somebody asks for it at `address`.

    A thread starts it that lives as long: the kernel kills a broker when the thread that started it ends.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._listener = Listener(family="AF_UNIX")
        self._thread = Thread(target=self._serve, name="shared server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where to ask."""
        return str(self._listener.address)

    def stop(self) -> None:
        """Stop the server, if it was started; nobody asks any more."""
        with Client(self.address, family="AF_UNIX") as asking:
            asking.send(None)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        """Each that asks names a directory, in which the server runs if it is the first."""
        place: str | RuntimeError | None = None
        with ExitStack() as stack:
            while True:
                # Whoever asked may be gone by now.
                with self._listener.accept() as asking, suppress(EOFError, OSError):
                    directory = asking.recv()
                    if directory is None:
                        return
                    place = place or _entered(stack, self._start(directory))
                    asking.send(place)


def _entered(stack: ExitStack, server: AbstractContextManager[str]) -> str | RuntimeError:
    """Where the server is, or why it did not start: each process that asks raises it."""
    try:
        return stack.enter_context(server)
    except Exception as error:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")


def ask_at(addresses: Mapping[str, str]) -> None:
    """From now on this process asks for servers there."""
    _addresses.update(addresses)


def server(name: str, directory: Path) -> str:
    """Where the server of this name is; the first to ask waits for its start. It may write to `directory`."""
    with Client(_addresses[name], family="AF_UNIX") as asking:
        asking.send(directory / name)
        answer: Any = asking.recv()
    if isinstance(answer, RuntimeError):
        raise answer
    return str(answer)
