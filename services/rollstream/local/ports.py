"""Chooses free TCP ports that stay free while the server that uses them is stopped."""

import random
import socket
from pathlib import Path

from rollstream.schemas.errors import PortTakenError

HOST = "127.0.0.1"
LOWEST = 10_240
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_LOWEST_EPHEMERAL = 32_768


def free_ports(count: int) -> list[int]:
    """`count` different free ports, below the ports that the kernel gives to clients.

    A port of the kernel's range could be taken by any connection while a broker restarts, even by the broker's own
    clients. Until this process ends, other processes that call this function do not get the same ports. A server can
    listen on them at once.
    """
    candidates = list(range(LOWEST, _lowest_ephemeral()))
    # A source of chance without a seed: processes that start together must not try the same ports.
    random.SystemRandom().shuffle(candidates)
    free: list[int] = []
    while candidates and len(free) < count:
        if _keep(port := candidates.pop()):
            free.append(port)
    if len(free) < count:
        raise PortTakenError(f"{count} free ports are needed on {HOST} between {LOWEST} and {_lowest_ephemeral()}")
    return free


def _keep(port: int) -> bool:
    """Bind `port` until this process ends; False if another socket has it.

    It is bound without SO_REUSEADDR, so that this fails if any other socket has the port. The option is set
    afterwards, so that a server can listen on the port.
    """
    keeper = socket.socket()
    try:
        keeper.bind((HOST, port))
    except OSError:
        keeper.close()
        return False
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.detach()
    return True


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now. Connections that are closing do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free(port: int, owner: str) -> None:
    """Raise PortTakenError if `port` is in use; it names the process that uses it."""
    if not is_free(port):
        raise PortTakenError(
            f"port {port} of {owner} is in use by {_holder(port)}. It was chosen at the first start and clients "
            "remember it: stop that process, or start another stack with a --run-dir of its own."
        )


def _lowest_ephemeral() -> int:
    try:
        lowest = int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return DEFAULT_LOWEST_EPHEMERAL
    return lowest if lowest > LOWEST + 1_000 else DEFAULT_LOWEST_EPHEMERAL


def _holder(port: int) -> str:
    import psutil

    for connection in psutil.net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.NoSuchProcess:
                break
    return "another user's process"
