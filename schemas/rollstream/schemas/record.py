"""The base class of all records: strict and frozen, with token arrays in numpy, and the plain form that Avro writes.

fastavro neither range- nor type-checks (it writes `1.7` and `True` as the int 1), so pydantic validates every record
before encoding and after decoding.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from rollstream.schemas.bounds import (
    MAX_COUNT,
    MAX_ID_CHARACTERS,
    MAX_ITEMS,
    MAX_LOGPROB,
    MAX_NAME_CHARACTERS,
    MAX_REWARD,
    MAX_SECONDS,
    MIN_LOGPROB,
)

T = TypeVar("T")

# The byte order is fixed, since records are read on other machines. Logprobs are never bfloat16: its rounding changes
# an importance ratio by up to 3 %.
INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
# Ids and names are printed, and become paths and keys: they hold no control characters (Unicode category Cc).
_NO_CONTROLS: Final = r"^\P{Cc}*$"


class Record(BaseModel):
    """Base of all records: frozen, strict, unknown fields refused. Equal if the Avro forms are equal."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True, ser_json_bytes="base64"
    )

    def to_avro(self) -> dict[str, Any]:
        """The plain form that the Avro writer takes; token arrays are little-endian bytes."""
        return self.model_dump()

    # pydantic compares fields with ==, which gives an array for numpy arrays, not a truth value.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Record) and self.to_avro() == other.to_avro()

    __hash__ = None  # type: ignore[assignment]  # maps inside records cannot be hashed; ids are the keys


def _array(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A read-only array [N] from Avro's bytes, an array or a list; raises ValueError for what `dtype` cannot hold."""
    if isinstance(value, bytes):
        if len(value) % dtype.itemsize:
            raise ValueError(f"{len(value)} bytes are not a whole number of {dtype.itemsize}-byte values")
        return np.frombuffer(value, dtype=dtype)
    array = np.asarray(value)
    # numpy makes an empty list an array of floats, which would be refused below.
    if array.size == 0:
        return np.zeros(0, dtype=dtype)
    if array.ndim != 1:
        raise ValueError(f"expected one dimension, got shape {array.shape}")
    if dtype == INT32 and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"expected integers, got {array.dtype}")
    if dtype == INT32 and (array.min() < 0 or array.max() > np.iinfo(np.int32).max):
        raise ValueError(f"token ids must be in [0, 2^31), got {array.min()} to {array.max()}")
    if dtype == FLOAT32 and not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"expected numbers, got {array.dtype}")
    # A copy: the caller keeps its own array and may change it.
    frozen = np.array(array, dtype=dtype)
    frozen.flags.writeable = False
    return frozen


def _token_ids(value: Any) -> npt.NDArray[np.int32]:
    array = _array(value, INT32)
    if array.size and array.min() < 0:
        raise ValueError(f"token ids must not be negative, got {array.min()}")
    return array


def _logprobs(value: Any) -> npt.NDArray[np.float32]:
    array = _array(value, FLOAT32)
    low, high = (array.min(), array.max()) if array.size else (0.0, 0.0)
    # NaN is within no bounds.
    if not (low >= MIN_LOGPROB and high <= MAX_LOGPROB):
        raise ValueError(f"log probabilities must be finite and in [{MIN_LOGPROB:g}, 0], got {low} to {high}")
    return array


def _bytes(value: npt.NDArray[Any]) -> bytes:
    return value.tobytes()


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("timestamps carry a time zone (UTC)")
    return value.astimezone(UTC)


TokenIds = Annotated[npt.NDArray[np.int32], BeforeValidator(_token_ids), PlainSerializer(_bytes, return_type=bytes)]
Logprobs = Annotated[npt.NDArray[np.float32], BeforeValidator(_logprobs), PlainSerializer(_bytes, return_type=bytes)]
Timestamp = Annotated[datetime, AfterValidator(_utc)]
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS, pattern=_NO_CONTROLS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS, pattern=_NO_CONTROLS)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]
# Strict pydantic refuses the list that Avro returns for a tuple.
Sequence = Annotated[tuple[T, ...], Field(strict=False)]
ShortSequence = Annotated[tuple[T, ...], Field(strict=False, max_length=MAX_ITEMS)]
Map = Annotated[dict[str, T], Field(max_length=MAX_ITEMS)]
# Strict pydantic refuses the plain string that Avro returns for an enum.
Symbol = Annotated[T, Field(strict=False)]


def writable(text: Any) -> Any:
    """`text` without lone surrogates: a Python string may hold them, e.g. an exception's, and UTF-8 can't."""
    # Most texts are ASCII, for which the answer is known at once.
    return text if not isinstance(text, str) or text.isascii() else text.encode("utf-8", "replace").decode()


Text = Annotated[str, BeforeValidator(writable)]
"""Text that engines, tools and user code make."""


def utc_now() -> datetime:
    """The current time, UTC, in the microseconds that Avro keeps."""
    return datetime.now(UTC)
