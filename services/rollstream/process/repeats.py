"""Thins out what libraries log again and again, for example each try to reach a broker that is away."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_EVERY_SECONDS: Final = 10.0
_MOST_KINDS: Final = 1000


@dataclass(slots=True)
class _Kind:
    """Lines of one kind: when one was passed, and how many were held back since."""

    passed_at: float
    num_held_back: int = 0


class Repeats(logging.Filter):
    """Of lines of one kind that the named loggers write, passes one every ten seconds, with how many were held back.

    Lines are of one kind if their text is the same before its values are filled in.
    """

    def __init__(self, *loggers: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._loggers = loggers
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if record.name.partition(".")[0] not in self._loggers:
            return True
        now, key = self._clock(), (record.name, record.lineno, str(record.msg))
        kind = self._kinds.get(key)
        if kind is not None and now - kind.passed_at < _EVERY_SECONDS:
            kind.num_held_back += 1
            return False
        if kind is not None and kind.num_held_back:
            record.msg = f"{record.msg} ({kind.num_held_back} more like it in {now - kind.passed_at:.0f} s)"
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[key] = _Kind(passed_at=now)
        return True


def thin_out(*loggers: str) -> None:
    """From now on write few of the lines that the loggers of these names, and those below them, repeat."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repeats(*loggers))
