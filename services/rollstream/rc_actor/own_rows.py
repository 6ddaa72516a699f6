"""Rows that a person's own function gives: `dataset_loader`."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError


class LoadedRows:
    """What each call of `load` gives, which must be the same each time. See `RowSource`."""

    def __init__(self, name: str, load: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self.name = name
        self._load = load
        self.num_rows: int | None = None

    def identity(self) -> str:
        """The function's path and the start of a SHA-256 of its rows."""
        digest, count = hashlib.sha256(), 0
        for row in self:
            content = row.fields if isinstance(row, ReadRow) else row.why
            digest.update(json.dumps(content, sort_keys=True).encode() + b"\n")
            count += 1
        self.num_rows = count
        return f"{self.name}@{digest.hexdigest()[:12]}"

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        """Raises `ConfigurationError` with what the function raised."""
        rows = self._rows()
        for number, row in enumerate(rows):
            where = f"{self.name} row {number}"
            try:
                text = json.dumps(row, allow_nan=False) if isinstance(row, Mapping) else ""
            except (TypeError, ValueError, RecursionError):
                text = ""
            if not text or len(text) > MAX_ROW_BYTES:
                yield BadRow(number, where, f"it is no mapping of JSON values of at most {MAX_ROW_BYTES} bytes")
            else:
                yield ReadRow(number, where, json.loads(text))

    def _rows(self) -> Iterator[Any]:
        try:
            yield from self._load()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        # BaseException: code of a user may also call sys.exit.
        except BaseException as error:
            raise ConfigurationError(f"dataset_loader {self.name!r} raised {type(error).__name__}: {error}") from error
