"""Imports a run that verifiers saved, and exports rollouts as a run that its viewers show.

A run is a directory with results.jsonl and metadata.json, at `OUTPUTS/evals/{env}--{model}/{run_id}/`.
"""

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.offline.convert.verifiers_metadata import RunFigures
from rollstream.offline.convert.verifiers_row import (
    extra_columns,
    kept_of,
    metrics_of,
    row_from_verifiers,
    row_to_verifiers,
)
from rollstream.offline.options import ExportOptions
from rollstream.process.files import replace_text
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow, RowSource
from rollstream.rows.write import kind_of, write_rows
from rollstream.schemas.errors import ConfigurationError

_MAX_METADATA_BYTES: Final = 2**24
_NUM_PLACES: Final = 10


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written where; `bad`: the first rows that were left out, each with its reason."""

    path: Path
    num_rows: int
    num_bad: int
    bad: tuple[str, ...]


class _Left:
    """Rows that were left out."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def others(self, source: RowSource) -> Iterator[ReadRow]:
        """The rows that can be read."""
        for row in source:
            if isinstance(row, ReadRow):
                yield row
                continue
            self.count += 1
            if len(self.first) < _NUM_PLACES:
                self.first.append(f"{row.where}: {row.why}")

    def refuse_all(self, path: Path, num_rows: int) -> None:
        """Raise `ConfigurationError` if rows were left out and there are no others."""
        if self.count and not num_rows:
            raise ConfigurationError(f"none of {self.count} rows of {path} can be used; the first, {self.first[0]}")


def import_run(run: Path, output: Path) -> Converted:
    """Write the rows of a run, or of a results.jsonl, to `output`: .jsonl, .parquet, or a directory of `datasets`.

    metadata.json is kept beside it, as `{output}.verifiers.json`. Raises `ConfigurationError`.
    """
    results = run / "results.jsonl" if run.is_dir() else run
    metadata = _read_metadata(results.parent / "metadata.json")
    left, num_rows = _Left(), 0
    with write_rows(output, kind_of(output)) as writer:
        for row in left.others(open_rows(results)):
            writer.write(row_from_verifiers(row.fields))
            num_rows += 1
        left.refuse_all(results, num_rows)
    if metadata is None:
        # One that is there is of another run.
        kept_metadata(output).unlink(missing_ok=True)
    else:
        _write_json(kept_metadata(output), metadata)
    return Converted(output, num_rows, left.count, tuple(left.first))


def export_run(options: ExportOptions) -> Converted:
    """Write rollouts as a run below `outputs`; an existing run of this id is replaced. Raises `ConfigurationError`."""
    rollouts, zero_for_failed = options.rollouts, options.zero_for_failed
    kept = _read_metadata(kept_metadata(rollouts)) or {}
    directory = _run_directory(options, kept)
    left, num_rows, has_changed, extra = _Left(), 0, False, dict[str, None]()
    with closing(RunFigures()) as figures:
        with write_rows(directory / "results.jsonl", "jsonl") as writer:
            for row in left.others(open_rows(rollouts)):
                result = row_to_verifiers(row.fields, row.number, zero_for_failed=zero_for_failed)
                imported = kept_of(row.fields)
                has_changed |= imported is None or any(
                    imported.get(part) != result.get(part) for part in ("reward", "metrics", "error")
                )
                if imported is None:
                    metrics = metrics_of(row.fields)
                    extra.update((column, None) for column in extra_columns(row.fields) if column not in metrics)
                figures.add(result, zero_for_failed=zero_for_failed)
                writer.write(result)
                num_rows += 1
            left.refuse_all(rollouts, num_rows)
        # Rows that were taken out since the import change the figures too.
        has_changed |= _num_rows(kept) != num_rows
        computed = figures.metadata() if has_changed else {}
    named = {key: value for key, value in (("env_id", options.env_id), ("model", options.model)) if value}
    state = {"state_columns": list(extra)} if extra else {}
    _write_json(directory / "metadata.json", {**kept, **computed, **state, **named})
    return Converted(directory, num_rows, left.count, tuple(left.first))


def kept_metadata(rollouts: Path) -> Path:
    """Where the metadata.json of imported rollouts lies."""
    # Resolved: `.` has no name.
    place = rollouts.resolve()
    return place.with_name(f"{place.name}.verifiers.json")


def _num_rows(metadata: Mapping[str, Any]) -> int | None:
    """How many rows a metadata.json speaks of; None if it does not say."""
    counts = [metadata.get(key) for key in ("num_examples", "rollouts_per_example")]
    return math.prod(count for count in counts if isinstance(count, int)) if None not in counts else None


def _run_directory(options: ExportOptions, kept: Mapping[str, Any]) -> Path:
    env_id, model = options.env_id or _text(kept.get("env_id")), options.model or _text(kept.get("model"))
    if not env_id or not model:
        lacks = " and ".join(option for option, value in (("--env-id", env_id), ("--model", model)) if not value)
        raise ConfigurationError(f"a run of verifiers is named by its environment and its model: give {lacks}")
    run_id = options.run_id or _last_part(_text(kept.get("path_to_save"))) or uuid.uuid4().hex[:8]
    first = f"{env_id}--{model}".replace("/", "--")
    for part in (first, run_id):
        _refuse_path(part)
    return options.outputs / "evals" / first / run_id


def _refuse_path(part: str) -> None:
    # Names may come from a file of somebody else: none may lead out of the directory.
    if part in ("", ".", "..") or not part.isprintable() or {"/", "\\"} & set(part) or len(part.encode()) > 255:
        raise ConfigurationError(f"{part!r} can't be the name of a directory: give other names with options")


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_metadata(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MAX_METADATA_BYTES:
            raise ConfigurationError(f"{path} is larger than {_MAX_METADATA_BYTES} bytes: it is no metadata of a run")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}; mend or remove it") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: expected a JSON object; mend or remove it")
    return found


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
