"""Schema ids and the schemas that they stand for, from the packaged manifest; no server is needed.

`registry_url.py` has the other implementation, for a Confluent-compatible registry.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from rollstream.schemas.errors import UnknownSchemaError
from rollstream.schemas.record import Record
from rollstream.schemas.topics import Topic

Schema = dict[str, Any]


class SchemaRegistry(Protocol):
    """Gives the id under which a topic's records are written, and the schema that belongs to an id."""

    def id_of(self, topic: Topic[Any]) -> int:
        """The id of the newest schema of `topic`'s record."""

    def schema_of(self, schema_id: int) -> Schema:
        """The schema with this id; raises `UnknownSchemaError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """One version of one record's schema; ids are never reused."""

    schema_id: int
    record: str
    version: int
    schema: Schema = field(repr=False)


@cache
def current_schema(record: type[Record]) -> Schema:
    """The packaged `.avsc` of a record: the schema that this code writes."""
    text = files("rollstream.schemas").joinpath("avro").joinpath(f"{record.__name__}.avsc").read_text()
    schema: Schema = json.loads(text)
    return schema


@cache
def manifest() -> tuple[ManifestEntry, ...]:
    """Every schema version ever committed, oldest first."""
    text = files("rollstream.schemas").joinpath("avro").joinpath("manifest.json").read_text()
    return tuple(
        ManifestEntry(schema_id=row["id"], record=row["record"], version=row["version"], schema=row["schema"])
        for row in json.loads(text)
    )


class PackagedRegistry:
    """The schemas packaged with the project. The committed manifest fixes their ids."""

    def __init__(self) -> None:
        self._by_id = {entry.schema_id: entry.schema for entry in manifest()}
        self._newest = {entry.record: entry.schema_id for entry in manifest()}

    def id_of(self, topic: Topic[Any]) -> int:
        return self._newest[topic.record.__name__]  # type: ignore[union-attr]  # dead-letters has no record

    def schema_of(self, schema_id: int) -> Schema:
        try:
            return self._by_id[schema_id]
        except KeyError:
            raise UnknownSchemaError(
                f"schema id {schema_id} is not in the packaged manifest {sorted(self._by_id)}"
            ) from None
