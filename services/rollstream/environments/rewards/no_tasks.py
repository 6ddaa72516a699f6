"""For environments that only score: their tasks are rows of a file."""

from typing import NoReturn

from rollstream.schemas.errors import ConfigurationError


def no_tasks(name: str) -> NoReturn:
    """Raises `ConfigurationError` that says where tasks come from."""
    raise ConfigurationError(
        f"environment {name!r} only scores answers and has no tasks of its own: read them from a file, e.g. "
        "source = 'jsonl' with its `path` in [producer]"
    )
