"""The metrics of a training run in a file, one JSON object a line, one line a step."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, Protocol

from rollstream.process.files import writable

_BLOCK: Final = 2**16
_OWN: Final = ("step", "timestamp")


class Logger(Protocol):
    """What training loops tell their metrics."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Note the metrics of a step."""
        ...

    def finish(self) -> None:
        """Nothing more will be logged."""
        ...


class JSONLLogger:
    """Appends to `metrics.jsonl` of a directory: step, timestamp (seconds since 1970), then the metrics.

    There is no bound on the number of lines. Each line is with the operating system when `log` returns, so that a
    process that is killed loses none. Numbers that are not finite, which JSON has no words for, are the texts "NaN",
    "Infinity" and "-Infinity", which `float` reads. A run that goes on from a checkpoint appends: of a step that stands
    there twice the last line counts.
    """

    def __init__(self, directory: Path | str) -> None:
        """Makes the directory if there is none, and cuts off half a line that a full disk or a power failure left.

        Raises `ConfigurationError` if the file can't be written.
        """
        self.path = Path(directory) / "metrics.jsonl"
        with writable(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: IO[bytes] = self.path.open("a+b")
            _cut_half_a_line(self._stream)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append a line. `metrics` are numbers, texts, flags, None, or scalars of numpy and torch.

        The names `step` and `timestamp` are the line's own. Raises TypeError for other values, `MachineError` if the
        disk is full, and ValueError after `finish`.
        """
        values = {name: _json_value(name, value) for name, value in metrics.items() if name not in _OWN}
        line = json.dumps({"step": int(step), "timestamp": time.time(), **values}, allow_nan=False)
        with writable(self.path):
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()

    def finish(self) -> None:
        """Have all lines on the disk, and close the file. May be called again."""
        if self._stream.closed:
            return
        with writable(self.path), self._stream:
            self._stream.flush()
            os.fsync(self._stream.fileno())


def finite_or_text(value: Any) -> Any:
    """The value, or its name if it is a number that is not finite, which JSON has no words for; `float` reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _json_value(name: str, value: Any) -> Any:
    if getattr(value, "shape", None) == ():  # a scalar of numpy or torch
        value = value.item()
    value = finite_or_text(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"metric {name!r} is a {type(value).__name__}: log numbers or texts, one value a name")


def _cut_half_a_line(stream: IO[bytes]) -> None:
    end = stream.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        stream.seek(start)
        newline = stream.read(end - start).rfind(b"\n")
        end = start + newline + 1
        if newline >= 0:
            break
        end = start
    stream.truncate(end)
