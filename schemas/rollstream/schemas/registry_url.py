"""Schema ids from a Confluent-compatible registry by URL; the only module that imports its client.

Subjects follow TopicNameStrategy, `<run>.<topic>-value`. Stages only look schemas up. Registering them is a step of the
deployment, `rollstream schemas register`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from rollstream.schemas.addresses import without_credentials
from rollstream.schemas.errors import RegistryError, UnknownSchemaError
from rollstream.schemas.record import Record
from rollstream.schemas.registry import Schema, current_schema
from rollstream.schemas.topics import TOPICS, Topic

_NOT_FOUND = 404
_CONFLICT = 409
_MAX_CHARACTERS: Final = 2**20
"""Of a schema; ours have 11,000."""


class ConfluentRegistry:
    """The ids and schemas of a server, cached, since the schema of an id never changes. Raises `RegistryError`."""

    def __init__(self, url: str, *, run: str) -> None:
        self._shown_url = without_credentials(url)
        self._run = run
        config = {"timeout": 10, "max.retries": 2, "retries.wait.ms": 200}
        self._client = SchemaRegistryClient({**_place_and_user(url), **config})
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, Schema] = {}

    def id_of(self, topic: Topic[Any]) -> int:
        """The id under which the packaged schema of `topic`'s record is registered."""
        subject = self._subject(topic)
        if subject not in self._ids:
            with self._raising_registry_error(f"looking up {subject}"):
                self._ids[subject] = self._client.lookup_schema(
                    subject, _client_schema(topic), normalize_schemas=True
                ).schema_id
        return self._ids[subject]

    def schema_of(self, schema_id: int) -> Schema:
        """The schema with this id; raises `UnknownSchemaError` when the registry has no such Avro schema."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._fetched(schema_id)
        return self._schemas[schema_id]

    def register(self) -> dict[str, int]:
        """Register the packaged schema of every topic of the run as FULL_TRANSITIVE; returns subject → id."""
        registered = {}
        for topic in TOPICS:
            if topic.record is None:
                continue
            subject = self._subject(topic)
            with self._raising_registry_error(f"registering {subject}"):
                # First the rule, so that the registry checks the schema that follows by it.
                self._client.set_compatibility(subject, "FULL_TRANSITIVE")
                registered[subject] = self._client.register_schema(
                    subject, _client_schema(topic), normalize_schemas=True
                )
        self._ids.update(registered)
        return registered

    def close(self) -> None:
        self._client.close()

    def _subject(self, topic: Topic[Any]) -> str:
        return f"{topic.of(self._run)}-value"

    def _fetched(self, schema_id: int) -> Schema:
        with self._raising_registry_error(f"fetching schema {schema_id}"):
            try:
                found = self._client.get_schema(schema_id)
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND:
                    raise UnknownSchemaError(
                        f"schema id {schema_id} is not in the registry {self._shown_url}"
                    ) from error
                raise
        # The codec parses one text: a schema that refers to others in the registry could not be resolved.
        if found.schema_type != "AVRO" or found.references:
            raise UnknownSchemaError(f"schema id {schema_id} in {self._shown_url} is no self-contained Avro schema")
        if len(found.schema_str or "") > _MAX_CHARACTERS:
            raise UnknownSchemaError(
                f"schema id {schema_id} in {self._shown_url} has {len(found.schema_str)} characters, the limit is "
                f"{_MAX_CHARACTERS}"
            )
        schema: Schema = json.loads(found.schema_str)
        return schema

    @contextmanager
    def _raising_registry_error(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SchemaRegistryError as error:
            raise RegistryError(
                f"{doing} at {self._shown_url}: {_refusal(error, self._shown_url, self._run)}"
            ) from error
        except httpx2.HTTPError as error:  # the client does not wrap what its HTTP library raises
            raise RegistryError(
                f"{doing}: no schema registry answered at {self._shown_url} ({error}); start it, or correct "
                "registry_url"
            ) from error


def _place_and_user(url: str) -> dict[str, str]:
    """The client's settings: its HTTP library logs the address of each request, so user and password stand apart."""
    parts = urlsplit(url)
    user, separator, place = parts.netloc.rpartition("@")
    config = {"url": urlunsplit(parts._replace(netloc=place))}
    if separator:
        name, _, password = user.partition(":")
        config["basic.auth.user.info"] = f"{unquote(name)}:{unquote(password)}"
    return config


def _client_schema(topic: Topic[Any]) -> ClientSchema:
    record: type[Record] | None = topic.record
    if record is None:
        raise ValueError(f"topic {topic.name} carries raw bytes and has no schema")
    return ClientSchema(json.dumps(current_schema(record)), "AVRO")


def _refusal(error: SchemaRegistryError, url: str, run: str) -> str:
    if error.http_status_code == _NOT_FOUND:
        # Where the URL holds a password, the command takes it from the settings.
        option = "" if "***" in url else f" --url {url}"
        return f"not registered; run `rollstream schemas register{option} --run {run}`"
    if error.http_status_code == _CONFLICT:
        return f"refused as incompatible with an older version: {error.error_message}"
    return f"HTTP {error.http_status_code}: {error.error_message}"
