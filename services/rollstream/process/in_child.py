"""Runs a check in a forked child: the threads that it starts end with it, and are never in this process."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

from rollstream.process.cause import known_cause
from rollstream.schemas.errors import BrokenWorldError, RollstreamError


def run_in_child(check: Callable[[], None]) -> None:
    """Run `check`, which must have a deadline, in a child. What it raises there is raised here.

    This process must not have threads of its own yet.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _report(check, sender)
    sender.close()
    error: RollstreamError | None
    try:
        error = receiver.recv()
    except EOFError:
        error = BrokenWorldError("a check before the start was ended from outside")
    finally:
        receiver.close()
        os.waitpid(child, 0)
    if error is not None:
        raise error


def _report(check: Callable[[], None], sender: Connection) -> NoReturn:
    error: RollstreamError | None = None
    try:
        check()
    except RollstreamError as raised:
        error = raised
    except BaseException as raised:  # noqa: BLE001 (the child must end here, whatever happens)
        error = known_cause(raised) or BrokenWorldError(f"{type(raised).__name__}: {raised}")
    sender.send(error)
    os._exit(0)
