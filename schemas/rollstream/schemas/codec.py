"""Encodes records as bytes and decodes them: 0x00, 4-byte big-endian schema id, Avro body (Confluent wire format)."""

import io
import struct
from typing import Any, Final, Generic, TypeVar

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType
from pydantic import ValidationError

from rollstream.schemas.bounds import MAX_VALUES
from rollstream.schemas.errors import DecodeError, EncodeError, RecordTooLargeError, UnknownSchemaError
from rollstream.schemas.readable import why_unreadable
from rollstream.schemas.record import Record
from rollstream.schemas.registry import PackagedRegistry, SchemaRegistry, current_schema
from rollstream.schemas.topics import Topic

R = TypeVar("R", bound=Record)

_HEADER = struct.Struct(">bI")
# fastavro has no error class of its own for bytes or a writer's schema that it cannot read: it raises any of these.
_UNREADABLE = (
    EOFError,
    LookupError,
    OverflowError,
    RecursionError,  # of JSON that is nested too deeply
    SchemaParseException,
    SchemaResolutionError,
    TypeError,
    UnknownType,
    ValueError,
    struct.error,
)


class AvroCodec(Generic[R]):
    """The codec of one topic. It reads every schema that the registry knows, and writes the packaged one."""

    def __init__(self, topic: Topic[R], registry: SchemaRegistry | None = None) -> None:
        if topic.record is None:
            raise ValueError(f"topic {topic.name} carries raw bytes and has no codec")
        self._record: type[R] = topic.record
        self._registry = registry or PackagedRegistry()
        self._id = self._registry.id_of(topic)
        self._parsed: dict[int, Any] = {}
        self._refused: dict[int, str] = {}
        self._reader = fastavro.parse_schema(current_schema(topic.record))
        self._name = topic.name
        self._max_bytes = topic.max_bytes

    def encode(self, record: R) -> bytes:
        """The wire bytes; raises `EncodeError`, as `RecordTooLargeError` if there are too many."""
        buffer = io.BytesIO()
        buffer.write(_HEADER.pack(0, self._id))
        try:
            fastavro.schemaless_writer(buffer, self._reader, record.to_avro())
        except OverflowError as error:
            raise EncodeError(f"{type(record).__name__} holds a whole number beyond 64 bits: {error}") from error
        except UnicodeEncodeError as error:
            raise EncodeError(f"{type(record).__name__} holds a text that UTF-8 can't encode: {error}") from error
        except ValueError as error:
            # Where a field may be null, the writer says no more than that no type fits.
            why = str(error)[:200]
            raise EncodeError(
                f"{type(record).__name__} holds a number beyond 64 bits, or of another type: {why}"
            ) from error
        if buffer.tell() > self._max_bytes:
            raise RecordTooLargeError(
                f"{type(record).__name__} is {buffer.tell()} bytes, the limit is {self._max_bytes}: "
                "lower max_tokens or split the prompt"
            )
        return buffer.getvalue()

    def decode(self, value: bytes | None) -> R:
        """The record; raises `DecodeError` saying what is wrong with the bytes."""
        schema_id = schema_id_of(value)
        if value is None or schema_id is None:
            raise DecodeError(f"{self._name}: not in the wire format (0x00, 4-byte schema id, Avro): {_start(value)}")
        if len(value) > self._max_bytes:
            raise DecodeError(f"{self._name}: {len(value)} bytes, the limit is {self._max_bytes}: split the prompt")
        is_own = schema_id == self._id
        # A value costs at least half a byte, so a short record can't hold too many, and needs no counting. With another
        # schema values may be passed over, and there the library does not notice that the bytes are at their end.
        body = io.BytesIO(value) if is_own and len(value) <= MAX_VALUES // 2 else _CountedReads(value)
        body.seek(_HEADER.size)
        try:
            # What was written with the reader's own schema needs no resolution, which takes more than the reading.
            plain = fastavro.schemaless_reader(body, self._writer(schema_id), None if is_own else self._reader)
        except (UnknownSchemaError, DecodeError) as error:
            raise DecodeError(f"{self._name}: {error}") from error
        except _UNREADABLE as error:
            raise DecodeError(
                f"{self._name}: schema {schema_id} does not fit: {type(error).__name__}: {str(error)[:_MOST_SHOWN]}"
            ) from error
        # fastavro stops at the end of a record and ignores what follows; here that shows damage or another schema.
        if body.tell() != len(value):
            raise DecodeError(f"{self._name}: {len(value) - body.tell()} bytes follow the record")
        return self._validated(plain)

    def _validated(self, plain: Any) -> R:
        try:
            return self._record.model_validate(plain)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DecodeError(
                f"{self._name}: {where}: {first['msg']}{_if_short(first['input'])} ({error.error_count()} errors)"
            ) from error

    def _writer(self, schema_id: int) -> Any:
        if schema_id not in self._parsed and schema_id not in self._refused:
            schema = self._registry.schema_of(schema_id)
            why = why_unreadable(schema)
            if why is None:
                self._parsed[schema_id] = fastavro.parse_schema(schema)
            else:
                self._refused[schema_id] = why
        if schema_id in self._refused:
            raise DecodeError(f"schema {schema_id} is not read with: {self._refused[schema_id]}")
        return self._parsed[schema_id]


class _CountedReads(io.BytesIO):
    """Bytes from which at most `MAX_VALUES` values are read, and nothing beyond their end.

    fastavro would make objects of millions of empty values, and pass over 2^60 that are not there.
    """

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self._left = MAX_VALUES

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise DecodeError(f"more than {MAX_VALUES} values in {self.getbuffer().nbytes} bytes: send fewer items")
        found = super().read(size)
        if not found and size:
            raise EOFError("a value beyond the end of the bytes")
        return found


def schema_id_of(value: bytes | None) -> int | None:
    """The schema id in the bytes' header, None if they are not in the wire format."""
    if value is None or len(value) < _HEADER.size:
        return None
    magic, schema_id = _HEADER.unpack_from(value)
    return int(schema_id) if magic == 0 else None


_MOST_SHOWN: Final = 120
"""Characters of another library's error. Of a record of another kind fastavro shows both schemas, 30,000 characters."""


def _if_short(value: Any) -> str:
    # Not what may be a whole prompt: the message goes into a header.
    return f", got {value!r}" if isinstance(value, int | float) or (isinstance(value, str) and len(value) < 80) else ""


def _start(value: bytes | None) -> str:
    return "null value" if value is None else f"{len(value)} bytes starting {value[:8].hex()}"
