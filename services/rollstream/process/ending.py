"""Ends the process at once, from any thread or callback whose errors would reach nobody."""

import logging
import os
import sys
from typing import Final, NoReturn

from rollstream.process.cause import known_cause
from rollstream.process.logs import is_verbose
from rollstream.schemas.errors import BrokenWorldError, RollstreamError

_LOG = logging.getLogger(__name__)
# 128 + SIGINT, as shells report it.
INTERRUPTED: Final = 130


def end_process(error: BaseException, consequence: str) -> NoReturn:
    """Log `error` and its consequence, and end with its exit code. Nothing else runs any more."""
    known = known_cause(error) or BrokenWorldError(f"{type(error).__name__}: {error}")
    log_ending(known, error, f"; {consequence}")
    leave(INTERRUPTED if isinstance(error, KeyboardInterrupt) else known.exit_code)


def log_ending(known: RollstreamError, error: BaseException, consequence: str = "") -> None:
    """Log why the process ends: one line where it says what to do, else with the traceback of `error`."""
    trace = None if known.is_explained and not is_verbose() else error
    _LOG.critical("%s: %s%s", type(known).__name__, known, consequence, exc_info=trace)


def leave(code: int) -> NoReturn:
    """End with this code, with logs flushed."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
