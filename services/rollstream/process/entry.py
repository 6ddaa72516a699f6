"""How every stage's process starts and ends: logging, signals, exit codes."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn

from rollstream.process.cause import known_cause
from rollstream.process.ending import INTERRUPTED, log_ending
from rollstream.process.heap import expect_many_objects
from rollstream.process.logs import configure_logging
from rollstream.process.stop import Stop

_LOG = logging.getLogger(__name__)


def run_process(stage: str, main: Callable[[Stop], Coroutine[Any, Any, None] | None]) -> NoReturn:
    """Run `main(stop)`, a function or a coroutine function, and exit: 0 when it returns, else the error's code.

    What the machine refuses ends it as a broken world does (`cause.py`); a defect with 1 and its traceback.

    The first SIGTERM or Ctrl-C asks `stop`: `main` finishes its work and returns. A second one ends it at once.
    """
    configure_logging(stage)
    expect_many_objects()
    stop = Stop()
    ask_on_signal(stop)
    try:
        outcome = main(stop)
        if outcome is not None:
            asyncio.run(outcome)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        known = known_cause(error)
        if known is None:
            raise
        log_ending(known, error)
        sys.exit(known.exit_code)
    _LOG.info("ended")
    sys.exit(0)


def ask_on_signal(stop: Stop) -> None:
    """Have the first SIGTERM or Ctrl-C ask `stop`; a second one ends the process at once."""

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.ask()
        # The default handlers are back, so that the next signal ends the process even if `main` hangs.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _LOG.info("%s: ending; once more to end at once", signal.Signals(number).name)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    _ask_while_blocked(stop)


def _ask_while_blocked(stop: Stop) -> None:
    """Ask `stop` also while the main thread, in which handlers run, waits in a client's own code, e.g. Kafka's."""
    wakes, told = socket.socketpair()
    told.setblocking(False)

    def watch() -> None:
        # For ever: a signal that comes later must not find it closed.
        while number := wakes.recv(1):
            if number[0] in (signal.SIGTERM, signal.SIGINT):
                stop.ask()

    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
    # A forked process would tell this one of its own signals.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=watch, name="signals", daemon=True).start()
