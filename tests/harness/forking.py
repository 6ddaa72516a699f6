"""Commands and functions that start fast: each is forked from a process that has imported the product already."""

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from multiprocessing.connection import Client, Connection
from pathlib import Path

from tests.harness.processes import StartedProcess
from tests.harness.shared_servers import server

# Else a stage would have the variables of whichever test it was that forked first.
_ENVIRONMENT = dict(os.environ)
# A process is killed when the connection to whoever started it closes: none does before this process ends.
_CONNECTIONS: list[Connection] = []


def start_forked(main: Callable[[], None], *, log: Path, env: Mapping[str, str] | None = None) -> StartedProcess:
    """Run `main` in a process that is forked from one with the product's imports; its output goes to `log`."""
    log.touch()
    connection = Client(_path(), family="AF_UNIX")
    _CONNECTIONS.append(connection)
    connection.send_bytes(pickle.dumps(partial(_logged, main, log, {**_ENVIRONMENT, **(env or {})})))
    return StartedProcess(pid=connection.recv(), exit_code=_ExitCode(connection), log=log)


def start_command(
    *words: str, log: Path, env: Mapping[str, str] | None = None, directory: Path | None = None
) -> StartedProcess:
    """Start `rollstream WORDS`, forked as `start_forked` does it; in the repository's root, or in `directory`."""
    return start_forked(partial(run_words, *words, directory=directory), log=log, env=env)


def run_words(*words: str, directory: Path | None = None) -> None:
    """Be `rollstream WORDS` in this process."""
    if directory is not None:
        os.chdir(directory)
    from rollstream.cli.main import main

    sys.argv = ["rollstream", *words]
    main()


@cache
def _path() -> str:
    return server("forks", Path())


class _ExitCode:
    """Gives the exit code, None before there is one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._code: int | None = None

    def __call__(self) -> int | None:
        if self._code is None and self._connection.poll():
            self._code = self._connection.recv()
        return self._code


def _logged(main: Callable[[], None], log: Path, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    main()
