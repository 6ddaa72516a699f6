"""The journal of a collection: one JSON line for each sample that ended, appended in batches.

After kill -9 it holds all but the last batch. A line that was torn is cut off when the journal is opened again. Of
several lines on one sample the last counts: a failed sample may be asked again.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from rollstream.schemas.rollout import Status

_BATCH_LINES: Final = 64
_BATCH_BYTES: Final = 2**22
_BATCH_SECONDS: Final = 1.0
_LOOK_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSample:
    """How sample `sample` of row `row` ended. `response` is null unless it completed; then `failure` says why.

    `reward` is null if nothing was scored; `scoring_failure` says why, if it should have been.
    """

    row: int
    sample: int
    attempts: int
    status: str
    response: str | None = None
    failure: str | None = None
    message: str | None = None
    finish_reason: str | None = None
    num_tokens: int = 0
    seconds: float = 0.0
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    scoring_failure: str | None = None
    scoring_message: str | None = None

    @property
    def is_completed(self) -> bool:
        """Whether there is a response."""
        return self.status == Status.COMPLETED

    def line(self) -> bytes:
        """As one line of the journal, without what is at its default."""
        values = {name: value for name in _NAMES if (value := getattr(self, name)) not in _LEFT_OUT}
        return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """From a line; None if it is no line of a journal."""
        try:
            values: Any = json.loads(line)
            return cls(**values)
        except (ValueError, TypeError):
            return None


_NAMES: Final = tuple(one.name for one in fields(EndedSample))
_LEFT_OUT: Final[tuple[Any, ...]] = (None, {})


class Journal:
    """Appends to the journal at `path`; used by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._flushed_at = time.monotonic()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._descriptor, _end_of_last_line(self._descriptor))
        except OSError as error:
            raise ConfigurationError(f"cannot write {path}: {error.strerror}; choose another place") from error

    def append(self, ended: EndedSample) -> None:
        """Note a sample; it is written with its batch."""
        line = ended.line()
        self._waiting.append(line)
        self._num_bytes += len(line)
        if len(self._waiting) >= _BATCH_LINES or self._num_bytes >= _BATCH_BYTES:
            self.flush()

    def flush_if_due(self) -> None:
        """Write what has waited for a second; called now and then, for slow samples."""
        if time.monotonic() - self._flushed_at >= _BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all that waits. Raises `BrokenWorldError` if the disk does not take it."""
        batch = b"".join(self._waiting)
        try:
            while batch:
                batch = batch[os.write(self._descriptor, batch) :]
        except OSError as error:
            raise BrokenWorldError(
                f"cannot write {self._path}: {error.strerror}; make room, and run the same command again"
            ) from error
        self._waiting, self._num_bytes, self._flushed_at = [], 0, time.monotonic()

    def close(self) -> None:
        """Write all that waits, also to the disk."""
        try:
            self.flush()
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def read_journal(path: Path) -> Iterator[tuple[int, EndedSample]]:
    """The samples with the offsets of their lines; a line that is not whole is passed over: it is asked again."""
    offset = 0
    if not path.exists():
        return
    with path.open("rb") as stream:
        for line in stream:
            ended = EndedSample.read(line) if line.endswith(b"\n") else None
            if ended is not None:
                yield offset, ended
            offset += len(line)


def _end_of_last_line(descriptor: int) -> int:
    """The length of the file without what follows its last line feed."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _LOOK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
