"""Rows of a stream of the Reasoning Cache actor: a JSONL file with a group of texts a line, of which each is a row.

A summary is no row, since nothing is asked by it and nobody scores it. The columns: `prompt` (the text before the
answer), `completion` (null where there is no answer yet), `reference_answer`, `data_source`, `reward` where it has one,
`finish_reason`, `group_id` and `metadata`. Tokens are left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rollstream.rows.conversation import REFERENCE
from rollstream.rows.jsonl import json_value, lines_of
from rollstream.rows.row import BadRow, ReadRow, identity_of
from rollstream.schemas.errors import ConfigurationError

_SUMMARY: Final = "summarization"


class GroupRows:
    """The rows of `path`. A last line without its end is being written, and no row yet. See `RowSource`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name
        self.num_rows: int | None = None

    def identity(self) -> str:
        """The identity; the rows are counted in a second pass."""
        found = identity_of(self._path, [self._path])
        if self.num_rows is None:
            self.num_rows = sum(1 for _ in self)
        return found

    def __iter__(self) -> Iterator[ReadRow | BadRow]:
        number = 0
        for line_number, line in enumerate(self._lines(), 1):
            for row in _rows(f"{self.name} line {line_number}", number, line):
                yield row
                number += 1
        if not number:
            raise ConfigurationError(f"{self._path} has no texts to ask or score")

    def _lines(self) -> Iterator[bytes | None]:
        try:
            stream = self._path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {error.strerror}") from error
        with stream:
            yield from (line for line in lines_of(stream) if line is None or line.endswith(b"\n"))


def _rows(where: str, number: int, line: bytes | None) -> Iterator[ReadRow | BadRow]:
    """The rows of a line, numbered from `number` on; one bad row for a line that is no group."""
    try:
        texts = _texts(line)
    except RecursionError:
        yield BadRow(number, where, "its JSON is nested too deeply")
        return
    except ValueError as error:
        yield BadRow(number, where, f"it {error}")
        return
    for place, text in enumerate(texts, 1):
        fields, named = _fields(text), f"{where} text {place}"
        if fields is None:
            yield BadRow(number, named, "expected an object with text and n_predicted, within its length")
        elif fields["metadata"].get("turn_type") == _SUMMARY:
            continue
        else:
            yield ReadRow(number, named, fields)
        number += 1


def _texts(line: bytes | None) -> list[Any]:
    if line is None:
        raise ValueError("is too long")
    try:
        texts = json_value(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error
    if not isinstance(texts, list) or not texts:
        raise ValueError("is no list of texts")
    return texts


def _fields(text: Any) -> dict[str, Any] | None:
    """The columns of a text; None if it is none."""
    if not isinstance(text, dict):
        return None
    whole, length, metadata = text.get("text"), text.get("n_predicted"), text.get("metadata")
    if not isinstance(whole, str) or type(length) is not int or not 0 <= length <= len(whole):
        return None
    metadata = metadata if isinstance(metadata, dict) else {}
    is_scored = metadata.get("has_reward", True) and text.get("reward") is not None
    return {
        "prompt": whole[: len(whole) - length],
        "completion": whole[len(whole) - length :] if not metadata.get("resume_state") else None,
        REFERENCE: metadata.get("answer"),
        "data_source": metadata.get("dataset_name"),
        **({"reward": text["reward"]} if is_scored else {}),
        "finish_reason": "stop" if text.get("finished") else "length",
        "group_id": text.get("group_id"),
        "metadata": metadata,
    }
