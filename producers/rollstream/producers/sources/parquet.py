"""Prompts from a parquet file, one row group in memory at a time; the only module of producers that imports pyarrow."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow
import pyarrow.parquet

from rollstream.producers.sources.fields import fields_of, row_from
from rollstream.producers.sources.identity import file_identity
from rollstream.producers.sources.protocol import PromptRow
from rollstream.rows.arrow import rows_of
from rollstream.rows.columns import is_json_text
from rollstream.rows.conversation import ASKED_COLUMNS
from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.values import text_of


class ParquetSource:
    """Row groups in a shuffled order, rows shuffled within each. The file must not change while it is used."""

    def __init__(self, path: Path, *, seed: int) -> None:
        self._path = path
        self._seed = seed
        try:
            self.dataset = file_identity(path)
            self._file = pyarrow.parquet.ParquetFile(path)
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise ConfigurationError(f"cannot read {path}: {error}; set `path` to a parquet file") from error
        metadata = self._file.metadata
        self._sizes: list[int] = [metadata.row_group(block).num_rows for block in range(metadata.num_row_groups)]
        self._firsts = [0, *accumulate(self._sizes)]
        names = self._file.schema_arrow.names
        if not ASKED_COLUMNS & set(names):
            raise ConfigurationError(f"{path}: needs a column `prompt` or `messages`, has {names}")
        self.num_rows = self._firsts[-1]
        if not self.num_rows:
            raise ConfigurationError(f"{path} has no rows")
        if "id" in names:
            self._refuse_equal_ids()

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        """A row group is read when its turn comes, so that only one is in memory."""
        to_skip = start
        for block, order in epoch_order(self._sizes, seed=self._seed, epoch=epoch):
            if to_skip >= len(order):
                to_skip -= len(order)
                continue
            table = self._file.read_row_group(block)
            for position in order[to_skip:]:
                row = self._firsts[block] + position
                [batch] = table.slice(position, 1).combine_chunks().to_batches()
                [read] = rows_of(batch, row, f"{self._path} row", row)
                yield row_from(read, dataset=self.dataset)
            to_skip = 0

    def _refuse_equal_ids(self) -> None:
        table = self._file.read(columns=["id"]).combine_chunks()
        ids = table["id"].drop_null()
        if is_json_text(table.schema.field("id")):
            read = [one for batch in table.to_batches() for one in rows_of(batch, 0, f"{self._path} row", 0)]
            values = [fields_of(one)["id"] for one in read]
            ids = pyarrow.array([text_of(value) for value in values if value is not None])
        if len(ids.unique()) < len(ids):
            raise ConfigurationError(
                f"{self._path}: column `id` has {len(ids)} values, {len(ids.unique())} different ones; each prompt "
                "needs its own"
            )
