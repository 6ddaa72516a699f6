"""Logs on stderr: one JSON object a line for machines, readable lines on a terminal.

Modules log with the standard library, as other libraries do, and structlog formats the lines of all in one way. Values
bound with `structlog.contextvars` while a record is handled are in every line that is logged meanwhile.
"""

import logging
import os
import sys
from types import TracebackType
from typing import Final

import structlog
from structlog.typing import EventDict, Processor

KEYS: Final = ("group_id", "rollout_id", "weight_version", "policy_lag", "topic", "partition", "offset")
"""The structured keys, bound or given as `extra={"group_id": …}`. All stages use these: one search finds a rollout."""


def configure_logging(stage: str, level: int = logging.INFO) -> None:
    """Send every log line of the process to stderr, marked with `stage`; uncaught exceptions and warnings too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_terminal_formatter(stage) if sys.stderr.isatty() else _json_formatter(stage))
    # force: a library that was imported before may have installed handlers of its own.
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def _json_formatter(stage: str) -> logging.Formatter:
    return _formatter(
        stage,
        structlog.processors.TimeStamper(fmt="iso", key="time"),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    )


def _terminal_formatter(stage: str) -> logging.Formatter:
    return _formatter(
        stage,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="time"),
        structlog.dev.ConsoleRenderer(
            event_key="message",
            timestamp_key="time",
            pad_event_to=0,
            colors=not os.environ.get("NO_COLOR"),
            # The default shows the values of variables, secrets among them.
            exception_formatter=structlog.dev.plain_traceback,
        ),
    )


def _formatter(stage: str, clock: Processor, *rendering: Processor) -> logging.Formatter:
    def add_stage(_logger: logging.Logger, _method: str, event: EventDict) -> EventDict:
        event["stage"] = stage
        return event

    return structlog.stdlib.ProcessorFormatter(
        processors=[
            clock,
            structlog.stdlib.add_log_level,
            add_stage,
            structlog.stdlib.add_logger_name,
            structlog.processors.EventRenamer("message"),
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.ExtraAdder(allow=KEYS),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *rendering,
        ]
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("rollstream").critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))
