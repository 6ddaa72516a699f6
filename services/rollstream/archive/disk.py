"""Reads and replaces the files of an archive. Errors name the file, and what to do about it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from rollstream.schemas.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)

_MOST_BYTES: Final = 2**24
"""Of a JSON file."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """For a block that reads a file of an archive: raises `ConfigurationError` if it is gone or damaged."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is gone: put it back, or make the archive anew") from error
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ConfigurationError(f"cannot read {path}: {os.strerror(error.errno)}") from error
        raise ConfigurationError(f"{path} is damaged: {str(error)[:200]}; make the archive anew") from error


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """For a block that writes below an archive's directory: raises `ConfigurationError` if it can't."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot write below {directory}: {error.strerror or error}; free space, or name another directory"
        ) from error


def load(path: Path, kind: type[M]) -> M | None:
    """A JSON file of an archive; None if there is none. Raises `ConfigurationError` if it is damaged."""
    try:
        with path.open("rb") as stream:
            return kind.model_validate_json(stream.read(_MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{path} is damaged: {where}: {first['msg']}; make the archive anew") from error


def hidden(name: str) -> str:
    """A name that no reader takes for a file of the table: some of them look at hidden files too."""
    return f".{name}.tmp"


def replace(path: Path, value: BaseModel) -> None:
    """Replace a JSON file as a whole; it is on the disk afterwards."""
    part = path.with_name(hidden(path.name))
    with part.open("w") as stream:
        stream.write(value.model_dump_json())
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    sync_directories([path.parent])


def sync_directories(directories: Iterable[Path]) -> None:
    """Have what was renamed in these directories on the disk."""
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
