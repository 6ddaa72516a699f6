"""Logs on stderr: one JSON object a line for machines, readable lines on a terminal."""

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

KEYS: Final = ("group_id", "rollout_id", "weight_version", "policy_lag", "topic", "partition", "offset")
"""The structured keys, given as `extra={"group_id": …}`; the same everywhere, so that one search follows a rollout."""


def configure_logging(stage: str, level: int = logging.INFO) -> None:
    """Send every log line of the process to stderr, marked with `stage`, uncaught exceptions included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TerminalFormatter(stage) if sys.stderr.isatty() else _JsonFormatter(stage))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


class _JsonFormatter(logging.Formatter):
    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "stage": self._stage,
            "logger": record.name,
            "message": record.getMessage(),
            **_keys(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TerminalFormatter(logging.Formatter):
    def __init__(self, stage: str) -> None:
        super().__init__(f"%(asctime)s {stage} %(levelname)s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the library's name)
        keys = " ".join(f"{name}={value}" for name, value in _keys(record).items())
        return f"{super().formatMessage(record)} {keys}".rstrip()


def _keys(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in KEYS if name in record.__dict__}


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("rollstream").critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))
