"""Prompts from a parquet file, one row group in memory at a time; the only module that imports pyarrow."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow
import pyarrow.parquet

from rollstream.producers.order import epoch_order
from rollstream.producers.sources.fields import row_from
from rollstream.producers.sources.identity import file_identity
from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import ConfigurationError


class ParquetSource:
    """Row groups in a shuffled order, rows shuffled within each. The file must not change while it is used."""

    def __init__(self, path: Path, *, seed: int) -> None:
        self._path = path
        self._seed = seed
        try:
            self._identity = file_identity(path)
            self._file = pyarrow.parquet.ParquetFile(path)
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise ConfigurationError(f"cannot read {path}: {error}; set `path` to a parquet file") from error
        metadata = self._file.metadata
        self._sizes: list[int] = [metadata.row_group(block).num_rows for block in range(metadata.num_row_groups)]
        self._firsts = [0, *accumulate(self._sizes)]
        names = self._file.schema_arrow.names
        if not {"prompt", "messages"} & set(names):
            raise ConfigurationError(f"{path}: needs a column `prompt` or `messages`, has {names}")
        if not sum(self._sizes):
            raise ConfigurationError(f"{path} has no rows")
        if "id" in names:
            self._refuse_equal_ids()

    @property
    def dataset(self) -> str:
        """See `Source.dataset`."""
        return self._identity

    @property
    def num_rows(self) -> int | None:
        """See `Source.num_rows`."""
        return sum(self._sizes)

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """See `Source.rows`."""
        to_skip = start
        for block, order in epoch_order(self._sizes, seed=self._seed, epoch=epoch):
            if to_skip >= len(order):
                to_skip -= len(order)
                continue
            table = self._file.read_row_group(block)
            for position in order[to_skip:]:
                row = self._firsts[block] + position
                [fields] = table.slice(position, 1).to_pylist()
                yield row_from(fields, dataset=self.dataset, row=row, where=f"{self._path} row {row}")
            to_skip = 0

    def _refuse_equal_ids(self) -> None:
        ids = self._file.read(columns=["id"])["id"].drop_null()
        if len(ids.unique()) < len(ids):
            raise ConfigurationError(
                f"{self._path}: column `id` has {len(ids)} values, {len(ids.unique())} different ones; each prompt "
                "needs its own"
            )
