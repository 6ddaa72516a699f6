"""The journal of `analyze-rewards`: one JSON line for each row that was scored, in the order of the rows.

It lies beside the output, from the first batch of a run until the output is whole. Its first line says what was scored
and how, so that a run that goes on mixes nothing. After kill -9 it holds all but the last batch; a line that was torn
is cut off, with what follows it, when the journal is opened again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.schemas.errors import BrokenWorldError, ConfigurationError

_ABSENT: Final = "nothing"


@dataclass(frozen=True, slots=True)
class Score:
    """What scoring the row with this number gave: a reward, or the failure that says why there is none."""

    row: int
    reward: float | None
    failure: str | None = None


class ScoresJournal:
    """Appends to the journal at `path`, and reads it; used by one process at a time.

    `begun_with`: what a run must have in common with the one that began the journal, as JSON values by their names.
    Raises `ConfigurationError` if the journal at `path` was begun with something else, or is none.
    """

    def __init__(self, path: Path, begun_with: Mapping[str, Any]) -> None:
        self.path = path
        self._first_line = _line(begun_with)
        self.num_rows = 0
        """Rows that are scored."""
        self.last_row = -1
        """The number of the last one; -1 if there is none."""
        try:
            if path.exists():
                self._take_up(begun_with)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}; remove it to score all rows") from error

    def _take_up(self, begun_with: Mapping[str, Any]) -> None:
        with self.path.open("rb") as stream:
            first = stream.readline()
            end = len(first) if first.endswith(b"\n") else 0
            if end:
                _refuse_other(self.path, first, begun_with)
                for line in stream:
                    score = _read(line)
                    if score is None or score.row <= self.last_row:
                        break
                    end, self.num_rows, self.last_row = end + len(line), self.num_rows + 1, score.row
        if self.num_rows:
            os.truncate(self.path, end)
        else:
            self.remove()

    def append(self, scores: Sequence[Score]) -> None:
        """Write the next rows. Raises `BrokenWorldError` if the disk does not take them."""
        lines = [_line({"row": one.row, **_told(one)}) for one in scores]
        try:
            # One write a batch: until then the batch is not there at all.
            with self.path.open("ab") as stream:
                stream.write(b"".join(lines if self.num_rows else [self._first_line, *lines]))
        except OSError as error:
            raise BrokenWorldError(
                f"cannot write {self.path}: {error.strerror}; make room, and run the same command again"
            ) from error
        self.num_rows += len(scores)
        self.last_row = scores[-1].row

    def __iter__(self) -> Iterator[Score]:
        """All rows that are scored, in their order."""
        if not self.num_rows:
            return
        with self.path.open("rb") as stream:
            stream.readline()
            for line in stream:
                score = _read(line)
                assert score is not None
                yield score

    def remove(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)


def _line(values: Mapping[str, Any]) -> bytes:
    # A reward function may raise an error with half of a surrogate pair in its text, which UTF-8 has no bytes for.
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _told(score: Score) -> dict[str, Any]:
    return {"reward": score.reward} if score.reward is not None else {"failure": score.failure}


def _read(line: bytes) -> Score | None:
    """The score of a line; None if it is no whole line of a journal."""
    if not line.endswith(b"\n"):
        return None
    try:
        values = json.loads(line)
        reward, failure = values.get("reward"), values.get("failure")
        is_one = isinstance(reward, float) if failure is None else isinstance(failure, str)
        return Score(values["row"], reward, failure) if is_one and isinstance(values["row"], int) else None
    except (ValueError, AttributeError, KeyError):
        return None


def _refuse_other(path: Path, first_line: bytes, begun_with: Mapping[str, Any]) -> None:
    try:
        before = dict(json.loads(first_line))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not the journal of analyze-rewards: remove it, or name another --output"
        ) from error
    for name in sorted({*before, *begun_with}):
        if before.get(name) != begun_with.get(name):
            was, now = (_ABSENT if one.get(name) is None else one[name] for one in (before, begun_with))
            raise ConfigurationError(
                f"{path} holds the scores of a run that was stopped; it was begun with {name} = {was}, now it is "
                f"{now}: go on with the same, name another --output, or remove that file to score all rows anew"
            )
