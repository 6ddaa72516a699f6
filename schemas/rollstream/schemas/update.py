"""Writes the committed schemas and the manifest after a model changed; an incompatible change is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.schemas.compatibility import incompatibilities
from rollstream.schemas.derive import avro_schema
from rollstream.schemas.errors import IncompatibleSchemaError
from rollstream.schemas.record import Record
from rollstream.schemas.registry import ManifestEntry, Schema, manifest
from rollstream.schemas.topics import RECORDS

_FOLDER: Final = Path(__file__).parent / "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUpdate:
    """The manifest after an update; `added` are its new entries."""

    entries: tuple[ManifestEntry, ...]
    added: tuple[ManifestEntry, ...]


def updated_manifest(entries: tuple[ManifestEntry, ...]) -> SchemaUpdate:
    """Add an entry for each record whose model changed; a change of docs alone keeps id and version.

    Raises `IncompatibleSchemaError` with every record, version and field that is not compatible.
    """
    problems: list[str] = []
    kept = list(entries)
    added: list[ManifestEntry] = []
    for record in RECORDS:
        schema = avro_schema(record)
        versions = [entry for entry in entries if entry.record == record.__name__]
        problems += incompatibilities(schema, versions)
        if versions and _bare(versions[-1].schema) == _bare(schema):
            # A change of docs alone changes nothing in the bytes, so the entry keeps its id.
            kept[kept.index(versions[-1])] = _entry(versions[-1].schema_id, record, versions[-1].version, schema)
        else:
            # Topics may hold records of every id that was ever given: no id is used again.
            next_id = max((entry.schema_id for entry in [*kept, *added]), default=0) + 1
            added.append(_entry(next_id, record, len(versions) + 1, schema))
    if problems:
        raise IncompatibleSchemaError("\n".join(["refused, nothing was written:", *problems]))
    return SchemaUpdate(entries=(*kept, *added), added=tuple(added))


def write_schemas() -> tuple[ManifestEntry, ...]:
    """Write every `.avsc` and the manifest; returns the entries that are new."""
    update = updated_manifest(manifest())
    for record in RECORDS:
        (_FOLDER / f"{record.__name__}.avsc").write_text(json.dumps(avro_schema(record), indent=2) + "\n")
    rows = [
        {"id": entry.schema_id, "record": entry.record, "version": entry.version, "schema": entry.schema}
        for entry in update.entries
    ]
    (_FOLDER / "manifest.json").write_text(json.dumps(rows, indent=1) + "\n")
    return update.added


def _entry(schema_id: int, record: type[Record], version: int, schema: Schema) -> ManifestEntry:
    return ManifestEntry(schema_id=schema_id, record=record.__name__, version=version, schema=schema)


def _bare(schema: Any) -> Any:
    """The schema without its docs."""
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key != "doc"}
    return [_bare(part) for part in schema] if isinstance(schema, list) else schema
