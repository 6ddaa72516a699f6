"""The GPUs of a machine that lends them to a generator on another one, `[generator.engine.nodes]`.

vLLM's worker processes run here. The engine on the generator's machine gives them their work and tells them what to
load; nothing else reaches them. They would wait for it for ever once it is gone, so its end is noticed here.
"""

import multiprocessing
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from rollstream.engines.model_directory import refuse_undivided
from rollstream.engines.settings import EngineSettings, NodesSettings
from rollstream.engines.vllm import setup as vllm_setup
from rollstream.engines.vllm.temporary import VllmDirectory
from rollstream.process.parent import end_forks_with_this_process
from rollstream.schemas.errors import EngineDeadError

_CONNECT_SECONDS: Final = 10.0
# A machine that vanishes closes no connection: after 15 idle seconds it is asked three times, 5 s apart.
_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def lend(settings: EngineSettings, on_ready: Callable[[], None]) -> NoReturn:
    """Start the workers and serve the generator's engine; `on_ready` is called once it has reached them.

    Blocks until it raises `EngineDeadError` when a worker or the generator's engine ends.
    """
    refuse_undivided(settings.model_path, settings.tensor_parallel_size)
    vllm_setup.prepare(settings)
    config = vllm_setup.engine_config(settings)
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    end_forks_with_this_process()
    VllmDirectory.make()
    machine = f"machine {settings.nodes.rank} of {settings.nodes.count}"
    try:
        executor = MultiprocExecutor(config, monitor_workers=False)
        leader = _connected(settings.nodes)
    except Exception as error:  # vLLM raises nothing more exact
        raise EngineDeadError(f"vLLM's processes on {machine} did not start: {error}") from error
    threading.Thread(target=_end_workers_with, args=(leader,), name="leader", daemon=True).start()
    on_ready()
    executor.start_worker_monitor(inline=True)
    raise EngineDeadError(
        f"vLLM's processes on {machine} have ended, by themselves or with the generator's engine at "
        f"{settings.nodes.leader}: all machines of this generator must start again"
    )


def _connected(nodes: NodesSettings) -> socket.socket:
    """A connection to the port where the workers met; what listens there is one of the leader's workers."""
    leader = socket.create_connection((nodes.leader, nodes.port), timeout=_CONNECT_SECONDS)
    leader.settimeout(None)
    for level, option, value in _KEEP_ALIVE:
        leader.setsockopt(level, option, value)
    return leader


def _end_workers_with(leader: socket.socket) -> None:
    with suppress(OSError):
        while leader.recv(1024):
            pass
    for worker in multiprocessing.active_children():
        worker.kill()
