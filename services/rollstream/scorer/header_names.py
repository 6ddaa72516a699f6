"""Lets aiokafka read records whose header names are not UTF-8.

Kafka takes any bytes as a name, and some clients write them. aiokafka 0.14 decodes names strictly: one such record
ended the scorer each time that it came to it. Here such a batch is read again, by aiokafka's parser in Python, and what
is not UTF-8 in its names is replaced. No other batch is read differently.
"""

from collections.abc import Iterator
from typing import Any, SupportsIndex, overload

import aiokafka.consumer.fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy


def accept_any_header_name() -> None:
    """From now on every consumer of aiokafka in this process reads such records."""
    aiokafka.consumer.fetcher.MemoryRecords = _Batches


class _Batches(_MemoryRecordsPy):  # type: ignore[misc]
    """The batches of one answer of the broker."""

    def next_batch(self) -> Any:
        raw = self._next_slice
        batch = super().next_batch()
        return None if batch is None else _Batch(batch, raw)


class _Batch:
    """A batch as aiokafka reads it, and its bytes."""

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._batch))
        except UnicodeDecodeError:
            again = _DefaultRecordBatchPy(self._raw)
            again._maybe_uncompress()
            again._buffer = _AnyText(again._buffer)
            return iter(again)


class _AnyText(bytearray):
    """Bytes whose slices decode whatever they hold."""

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytearray: ...
    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _AnyText(part) if isinstance(key, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, "replace")
