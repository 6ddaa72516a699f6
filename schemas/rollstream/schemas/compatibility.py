"""Checks whether a schema may replace all its older versions (FULL_TRANSITIVE compatibility).

Each version must be able to read what every other version wrote: stages are upgraded one by one, and topics keep old
records.
"""

import json
from collections.abc import Iterable, Iterator

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from rollstream.schemas.derive import avro_schema
from rollstream.schemas.registry import ManifestEntry, Schema, current_schema, manifest
from rollstream.schemas.topics import RECORDS


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
