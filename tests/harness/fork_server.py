"""A process that has imported what stages import, and forks itself for each process that a test starts.

Imports take longer than anything else that a stage does in a test. `python -m tests.harness.fork_server SOCKET` says
that it is ready by a line, and ends, with all that it has forked, when its standard input does.
"""

import gc
import importlib
import multiprocessing
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT = Path(__file__).parents[2]
IMPORTED: Final = (
    "rollstream.generator.loop",
    "rollstream.engines.scripted",
    "rollstream.producers.loop",
    "rollstream.scorer.loop",
    "rollstream.training.learning.learner",
    "rollstream.trainer.start",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "rollstream.cli.archive",
    "rollstream.archive.archiver",
    "rollstream.cli.collect",
    "rollstream.offline.continuous.run",
    "rollstream.offline.scores.run",
)


@contextmanager
def a_fork_server(_directory: Path) -> Iterator[str]:
    """The path of its socket; it runs as long as the block."""
    # Paths of sockets are short.
    with TemporaryDirectory(prefix="forks-") as short:
        path = str(Path(short) / "socket")
        command = [sys.executable, "-m", "tests.harness.fork_server", path]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline(), "the process that stages are forked from has ended"
            yield path
            server.communicate()


class _ForkServer:
    """Who started a process has a connection: over it come what to run, then its pid and its exit code back."""

    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        self._forked: dict[Connection, ForkProcess] = {}
        # Written to by the signal handler of Python itself.
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork for everybody who connects, until the standard input ends."""
        while sys.stdin not in (ready := wait([self._listening, self._woken, sys.stdin, *self._forked])):
            if self._woken in ready:
                self._woken.recv(4096)
            if self._listening in ready:
                self._fork(Connection(self._listening.accept()[0].detach()))
            for connection, process in list(self._forked.items()):
                if connection in ready:
                    process.kill()  # whoever started it has ended
                if process.exitcode is not None:
                    self._tell_end(connection, process.exitcode)
        signal.set_wakeup_fd(-1)
        for process in self._forked.values():
            process.kill()

    def _fork(self, connection: Connection) -> None:
        try:
            asked = connection.recv_bytes()
        except (EOFError, OSError):  # whoever asked is gone
            connection.close()
            return
        process = multiprocessing.get_context("fork").Process(target=self._be_forked, args=(asked,), daemon=True)
        process.start()
        self._forked[connection] = process
        with suppress(OSError):
            connection.send(process.pid)

    def _tell_end(self, connection: Connection, exit_code: int) -> None:
        del self._forked[connection]
        with connection, suppress(OSError):
            connection.send(exit_code)

    def _be_forked(self, asked: bytes) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for held in (self._listening, self._woken, self._wakes, *self._forked):
            held.close()
        pickle.loads(asked)()


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    # Else the first full collection in each process would look at everything that was imported, and would copy its
    # memory by that: measured, 0.35 s of a core for each scorer or trainer.
    gc.collect()
    gc.freeze()
    server = _ForkServer(sys.argv[1])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve()


if __name__ == "__main__":
    main()
