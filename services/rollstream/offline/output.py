"""The output of a collection from its journal: all samples in the order of the tasks, in constant memory.

Where a sample is in the journal is kept in a file, 8 bytes each, so that the order does not need them all in memory.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from rollstream.offline.journal import EndedSample, read_journal
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.rows.row import BadRow
from rollstream.rows.write import RowWriter
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.failure import FailureCode

Row = dict[str, Any]
ToColumns = Callable[[CollectTask, EndedSample, CollectSettings], Row | None]
"""The row of a sample; None: the output has none of it."""
_ENTRY_BYTES: Final = 8


class JournalIndex:
    """The newest line on each sample, found by row. A context manager: its file is removed at the end."""

    def __init__(self, journal: Path, index: Path, num_samples: int) -> None:
        self._journal = journal
        self._index = index
        self._num_samples = num_samples

    def __enter__(self) -> Self:
        self._lines: IO[bytes] = self._journal.open("rb")
        self._places = os.open(self._index, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        for offset, ended in read_journal(self._journal):
            if 0 <= ended.sample < self._num_samples and ended.row >= 0:
                place = (ended.row * self._num_samples + ended.sample) * _ENTRY_BYTES
                self._note(place, offset)
        return self

    def _note(self, place: int, offset: int) -> None:
        try:
            # 0 is no line, as in the holes of a file.
            os.pwrite(self._places, (offset + 1).to_bytes(_ENTRY_BYTES, "little"), place)
        except OSError as error:
            raise BrokenWorldError(
                f"cannot write {self._index}: {error.strerror}; make room, and run the same command again"
            ) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        os.close(self._places)
        self._index.unlink(missing_ok=True)

    def of_row(self, row: int) -> Iterator[EndedSample]:
        """The samples of a row, in their order."""
        size = self._num_samples * _ENTRY_BYTES
        places = os.pread(self._places, size, row * size)
        for start in range(0, len(places), _ENTRY_BYTES):
            offset = int.from_bytes(places[start : start + _ENTRY_BYTES], "little")
            if offset:
                self._lines.seek(offset - 1)
                ended = EndedSample.read(self._lines.readline())
                assert ended is not None
                yield ended


def output_rows(
    tasks: TaskSource, index: JournalIndex, settings: CollectSettings, to_columns: ToColumns
) -> Iterator[Row]:
    """The rows of the output; a bad row of the input has none."""
    for task in tasks:
        if not isinstance(task, BadRow):
            for ended in index.of_row(task.number):
                row = to_columns(task, ended, settings)
                if row is not None:
                    yield row


def rollout_columns(task: CollectTask, ended: EndedSample, settings: CollectSettings) -> Row:
    """The columns of source document 001, and how the sample ended."""
    sampling = settings.sampling
    return {
        "prompt": task.asked,
        "response": ended.response,
        "sample_idx": ended.sample,
        "data_idx": task.number,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "status": ended.status,
        "failure": ended.failure,
        # An empty response with `length` is a model that was cut off while it thought.
        "finish_reason": ended.finish_reason,
        **_original(task),
    }


def scored_columns(task: CollectTask, ended: EndedSample, settings: CollectSettings) -> Row:
    """The same with what `collect` knows beyond it: rewards, tokens and time."""
    columns = rollout_columns(task, ended, settings)
    rewards: Row = {}
    if settings.environment:
        rewards = {"reward": ended.reward, "scoring_failure": ended.scoring_failure}
        rewards.update({f"reward_{name}": value for name, value in ended.components.items()})
    measured = {"num_tokens": ended.num_tokens, "seconds": ended.seconds}
    return {**columns, **rewards, **measured}


def _original(task: CollectTask) -> Row:
    return {f"original_{name}": value for name, value in task.fields.items()}


def write_failures(writer: RowWriter, task: CollectTask | BadRow, samples: list[EndedSample]) -> None:
    """List what has no response, and what has no reward although it should."""
    if isinstance(task, BadRow):
        writer.write(_failure(task, None, FailureCode.BAD_PROMPT.value, task.why, attempts=0, stage="reading"))
        return
    for ended in samples:
        if ended.failure is not None:
            writer.write(_failure(task, ended.sample, ended.failure, ended.message, ended.attempts, "generation"))
        if ended.scoring_failure is not None:
            writer.write(
                _failure(task, ended.sample, ended.scoring_failure, ended.scoring_message, ended.attempts, "scoring")
            )


def _failure(  # the columns of one line
    task: CollectTask | BadRow, sample: int | None, failure: str, message: str | None, attempts: int, stage: str
) -> Mapping[str, Any]:
    return {
        "data_idx": task.number,
        "sample_idx": sample,
        "where": task.where,
        "stage": stage,
        "failure": failure,
        "message": message,
        "attempts": attempts,
    }
