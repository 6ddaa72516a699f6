"""Logs on stderr: one JSON object a line for machines, readable lines on a terminal.

Modules log with the standard library, as other libraries do, and structlog formats the lines of all in one way. Values
bound with `structlog.contextvars` while a record is handled are in every line that is logged meanwhile.
"""

import io
import logging
import os
import re
import sys
import threading
from types import TracebackType
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from rollstream.process.masking import SECRETS
from rollstream.process.terminal import escaped

KEYS: Final = (
    "group_id", "rollout_id", "weight_version", "policy_lag", "topic", "partition", "offset", "trace_id", "span_id",
)  # fmt: skip
"""The structured keys, bound or given as `extra={"group_id": …}`. All stages use these: one search finds a rollout."""


KAFKA_CLIENT: Final = "rollstream.kafka_client"
"""The logger of what the Kafka client says by itself."""
# They repeat themselves while a broker is gone.
_CHATTY: Final = (
    KAFKA_CLIENT, "rollstream.bus.reader", "rollstream.bus.publisher", "rollstream.bus.group_config", "aiokafka",
    "faust", "mode",
)  # fmt: skip
_QUIET_SECONDS: Final = 30.0
_MOST_KINDS: Final = 1000


def configure_logging(stage: str) -> None:
    """Send every log line of the process to stderr, marked with `stage`; uncaught exceptions and warnings too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_terminal_formatter(stage) if sys.stderr.isatty() else _json_formatter(stage))
    handler.addFilter(OneOfAKind())
    if not is_verbose():
        logging.getLogger(KAFKA_CLIENT).setLevel(logging.NOTSET)
    # force: a library that was imported before may have installed handlers of its own.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def configure_command_logging() -> None:
    """For commands of people: only warnings, as plain text, and none of the Kafka client, whose errors are raised."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter("%(message)s"))
    handler.addFilter(OneOfAKind())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(KAFKA_CLIENT).setLevel(logging.CRITICAL)


def be_verbose() -> None:
    """Log everything of this project, and what the Kafka client says."""
    for name in ("rollstream", KAFKA_CLIENT):
        logging.getLogger(name).setLevel(logging.DEBUG)


def is_verbose() -> bool:
    return logging.getLogger("rollstream").level == logging.DEBUG


class OneOfAKind(logging.Filter):
    """Lets a Kafka client warn of the same thing once in 30 s: without a broker it does so many times a second.

    Lines are of one kind if only their digits differ. The next one that passes says how many were left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        is_chatty = record.name in _CHATTY or record.name.partition(".")[0] in _CHATTY
        if record.levelno < logging.WARNING or not is_chatty:
            return True
        kind = record.name + re.sub(r"\d+", "", record.getMessage())
        quiet_until, num_left_out = self._kinds.get(kind, (0.0, 0))
        if record.created < quiet_until:
            self._kinds[kind] = (quiet_until, num_left_out + 1)
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (record.created + _QUIET_SECONDS, 0)
        if num_left_out:
            record.msg, record.args = f"{record.getMessage()} ({num_left_out} more like it since the last)", ()
        return True


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line, without what could steer the terminal."""
        return SECRETS.masked(escaped(super().format(record), keep="\n\t"))


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
        _escape_texts,
        structlog.dev.ConsoleRenderer(
            event_key="message",
            timestamp_key="time",
            pad_event_to=0,
            colors=not os.environ.get("NO_COLOR"),
            # The default shows the values of variables, secrets among them.
            exception_formatter=_plain_traceback,
        ),
    )


def _escape_texts(_logger: logging.Logger, _method: str, event: EventDict) -> EventDict:
    """Ids and texts of records come from outside. Messages of libraries may have several lines."""
    return {
        name: escaped(value, keep="\n\t" if name == "message" else "") if isinstance(value, str) else value
        for name, value in event.items()
    }


def _plain_traceback(output: TextIO, error: ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, error)
    output.write(escaped(plain.getvalue(), keep="\n\t"))


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
            _without_secrets,
        ]
    )


def _without_secrets(_logger: logging.Logger, _method: str, line: Any) -> str:
    """The last guard: any library may log what it was given."""
    return SECRETS.masked(line)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("rollstream").critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    # SystemExit ends a thread without a word, as Python's own hook has it.
    if uncaught.exc_value is not None and not issubclass(uncaught.exc_type, SystemExit):
        _log_uncaught(uncaught.exc_type, uncaught.exc_value, uncaught.exc_traceback)
