"""An engine in a process of its own, driven over a pipe; and the process that it is forked from.

vLLM forks, sets environment variables and warns: that must not happen in the process of the tests. Its imports take
longer than anything else that it does in a test. So one process imports it, and each engine's process is forked from
that one.
"""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from tests.harness.processes import StartedProcess, start_process

START_VERSION = 7
_START_SECONDS = 200.0
_SCENARIO_SECONDS = 100.0
_PID_BYTES = 4
_LASTING_SECONDS = 0.5
# Threads that spin while they wait would stall the other processes of a small machine.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class EngineNursery:
    """The process that has imported vLLM, and forks itself for each engine or server."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.harness.engine_host", str(theirs.fileno())]
        self._process = start_process(command, env=_ENVIRONMENT, pass_fds=[theirs.fileno()])
        theirs.close()
        self._requests.settimeout(_START_SECONDS)

    def fork(self, main: Callable[[Connection], None], log: Path | None = None) -> tuple[StartedProcess, Connection]:
        """A process that runs `main` with its end of a pipe, and our end; `log`: where `main` writes what it says."""
        ours, theirs = Pipe()
        with theirs:
            socket.send_fds(self._requests, [b"."], [theirs.fileno()])
        answer = self._requests.recv(_PID_BYTES)
        assert answer, "the process that engines are forked from has ended"
        pid = int.from_bytes(answer)
        ours.send_bytes(pickle.dumps(main))
        return StartedProcess(pid=pid, exit_code=lambda: None if psutil.pid_exists(pid) else 0, log=log), ours

    def close(self) -> None:
        """End the process; the engines go on."""
        self._requests.close()
        self._process.wait()


class EngineHost:
    """One child process with one engine; `run` awaits a scenario on it and returns what it returns."""

    def __init__(self, settings: EngineSettings, nursery: EngineNursery) -> None:
        self.settings = settings
        self._process, self._pipe = nursery.fork(partial(serve_engine, settings))
        self._is_ready = False

    def run(self, scenario: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """`await scenario(engine, *arguments)` in the child; raises what it raised."""
        if not self._is_ready:
            self._answer(_START_SECONDS)
            self._is_ready = True
        self._pipe.send_bytes(pickle.dumps((scenario, arguments)))
        return self._answer(_SCENARIO_SECONDS)

    def forked(self) -> list[psutil.Process]:
        """The processes that the engine has forked. Programs that it runs, which mostly end at once, do not count."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            return [
                child
                for child in children
                if time.time() - child.create_time() > _LASTING_SECONDS and "-c" not in child.cmdline()
            ]
        return []

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def close(self) -> None:
        """End the child; its engine's own processes end with it."""
        self._pipe.close()
        try:
            self._process.wait()
        finally:
            self._process.kill()

    def _answer(self, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"{self.settings.kind} did not answer within {timeout} s")
        result = pickle.loads(self._pipe.recv_bytes())
        if isinstance(result, BaseException):
            raise result
        return result


def serve_engine(settings: EngineSettings, pipe: Connection) -> None:
    """Be the child of an `EngineHost`."""
    asyncio.run(_serve(settings, pipe))


async def _serve(settings: EngineSettings, pipe: Connection) -> None:
    engine: Engine = build_engine(settings)
    await engine.start(START_VERSION)
    pipe.send_bytes(pickle.dumps(None))
    while True:
        try:
            scenario, arguments = pickle.loads(await asyncio.to_thread(pipe.recv_bytes))
        except EOFError:
            break
        try:
            result = await scenario(engine, *arguments)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the other side raises it
            result = error
        pipe.send_bytes(pickle.dumps(result))
    await engine.close()


def _fork_processes(requests: socket.socket) -> None:
    """Fork a process for each pipe that comes, and run there what comes over it, until nobody asks any more."""
    # What takes the time, in each engine's own process and in that which it starts.
    import vllm.v1.engine.async_llm
    import vllm.v1.worker.cpu_worker  # noqa: F401

    # As in the process that stages are forked from.
    gc.collect()
    gc.freeze()
    # Nobody waits for the forked ones: they leave no zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, pipes, _, _ = socket.recv_fds(requests, 1, 1)
        if not pipes:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            pipe = Connection(pipes[0])
            pickle.loads(pipe.recv_bytes())(pipe)
            return
        os.close(pipes[0])
        requests.send(pid.to_bytes(_PID_BYTES))


if __name__ == "__main__":
    _fork_processes(socket.socket(fileno=int(sys.argv[1])))
