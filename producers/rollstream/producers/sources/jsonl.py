"""Prompts from a JSONL file. It is read once to check every line and to note its offset, then row by row."""

from array import array
from collections.abc import Iterator
from pathlib import Path

from rollstream.producers.sources.fields import row_from
from rollstream.producers.sources.identity import file_identity
from rollstream.producers.sources.protocol import PromptRow
from rollstream.rows.jsonl import row_of_line
from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import ConfigurationError


class JsonlSource:
    """One JSON object a line; empty lines are passed over. The file must not change while it is used."""

    def __init__(self, path: Path, *, seed: int) -> None:
        self._path = path
        self._seed = seed
        self._offsets = array("q")
        self._lines = array("q")
        try:
            self.dataset = file_identity(path)
            self._check()
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}; set `path` to a JSONL file") from error
        if not self._offsets:
            raise ConfigurationError(f"{path} has no rows")
        self.num_rows = len(self._offsets)

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """All lines, shuffled anew each epoch."""
        [(_, order)] = epoch_order([len(self._offsets)], seed=self._seed, epoch=epoch)
        with self._path.open("rb") as stream:
            for row in order[start:]:
                stream.seek(self._offsets[row])
                yield self._row(row, self._lines[row], stream.readline())

    def _check(self) -> None:
        offset = 0
        ids: set[str] = set()
        with self._path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    row = self._row(len(self._offsets), number, line)
                    if row.prompt_id in ids:
                        raise ConfigurationError(
                            f"{self._path} line {number}: another line has its `id` too; each prompt needs its own"
                        )
                    ids.add(row.prompt_id)
                    self._offsets.append(offset)
                    self._lines.append(number)
                offset += len(line)

    def _row(self, row: int, number: int, line: bytes) -> PromptRow:
        return row_from(row_of_line(row, f"{self._path} line {number}", line), dataset=self.dataset)
