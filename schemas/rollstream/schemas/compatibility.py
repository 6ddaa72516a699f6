"""Checks whether a schema may replace its older versions (FULL_TRANSITIVE compatibility), and writes those that may.

Each version must be able to read what every other version wrote: stages are upgraded one by one, and topics keep old
records.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from rollstream.schemas.derive import avro_schema
from rollstream.schemas.errors import IncompatibleSchemaError
from rollstream.schemas.record import Record
from rollstream.schemas.registry import ManifestEntry, Schema, current_schema, manifest
from rollstream.schemas.topics import RECORDS

_FOLDER: Final = Path(__file__).parent / "avro"


def incompatibilities(new: Schema, older: Iterable[ManifestEntry]) -> list[str]:
    """Why `new` cannot replace `older`: one sentence for each field, with record, version and direction."""
    problems = []
    for entry in older:
        for what, reader, writer in (
            (f"this code can't read what version {entry.version} wrote", new, entry.schema),
            (f"a reader of version {entry.version} can't read what this code writes", entry.schema, new),
        ):
            problems += [f"{entry.record}: {what}: {reason}" for reason in _unreadable(reader, writer)]
    return problems


def check_packaged() -> list[str]:
    """All differences of the committed schemas from the models and the manifest, and all incompatible versions."""
    problems = []
    for record in RECORDS:
        name = record.__name__
        versions = [entry for entry in manifest() if entry.record == name]
        if avro_schema(record) != current_schema(record):
            problems.append(f"{name}: avro/{name}.avsc is not what the model implies; run `rollstream schemas update`")
        if not versions or versions[-1].schema != current_schema(record):
            problems.append(f"{name}: avro/{name}.avsc is not in the manifest; run `rollstream schemas update`")
        for position, entry in enumerate(versions):
            problems += incompatibilities(entry.schema, versions[:position])
    return problems


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


def _unreadable(reader: Schema, writer: Schema) -> Iterator[str]:
    result = ReaderWriterCompatibilityChecker().get_compatibility(
        avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer))
    )
    if result.compatibility is SchemaCompatibilityType.compatible:
        return
    kinds = ", ".join(sorted({kind.value.replace("_", " ") for kind in result.incompatibilities}))
    fields = ", ".join(sorted({_field_at(reader, location) for location in result.locations} - {""}))
    yield f"{fields or 'the record'}: {kinds} ({'; '.join(sorted(result.messages))})"


def _field_at(schema: Schema, location: str) -> str:
    """Turn `/fields/3/type/fields/0` into `prompt.source`; the numbers are positions in the reader's schema."""
    names = []
    node: object = schema
    steps = iter(location.strip("/").split("/"))
    for step in steps:
        if step == "fields" and isinstance(node, dict):
            field = node["fields"][int(next(steps))]
            names.append(field["name"])
            node = field["type"]
        elif step == "items" and isinstance(node, dict):
            node = node["items"]
    return ".".join(names)


def _entry(schema_id: int, record: type[Record], version: int, schema: Schema) -> ManifestEntry:
    return ManifestEntry(schema_id=schema_id, record=record.__name__, version=version, schema=schema)


def _bare(schema: Any) -> Any:
    """The schema without its docs."""
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key != "doc"}
    return [_bare(part) for part in schema] if isinstance(schema, list) else schema
