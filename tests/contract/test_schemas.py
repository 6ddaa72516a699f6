"""The committed schemas: equal to the models, compatible with every older version, readable by others."""

import copy
import io
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.compatibility import check_packaged, incompatibilities, updated_manifest
from rollstream.schemas.derive import avro_schema
from rollstream.schemas.errors import IncompatibleSchemaError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, SkippedRecord
from rollstream.schemas.progress import ProgressKind
from rollstream.schemas.prompt import Message
from rollstream.schemas.record import Record
from rollstream.schemas.registry import ManifestEntry, Schema, current_schema, manifest
from rollstream.schemas.rollout import FinishReason, Status
from rollstream.schemas.scored import TurnScore
from rollstream.schemas.topics import (
    FEEDBACK,
    LEDGER,
    PRODUCERS,
    PROGRESS,
    PROMPTS,
    RECORDS,
    ROLLOUTS,
    SCORED,
    SERVE_ROLLOUTS,
    TOPICS,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)
from tests.harness.builders import (
    a_failure,
    a_feedback,
    a_generated,
    a_generator,
    a_progress,
    a_prompt,
    a_rollout,
    a_scoring,
    a_served_answer,
    a_text_turn,
    a_tool_turn,
    a_turn,
    a_turn_progress,
    an_entry,
    applied,
    published,
)
from tests.harness.wire_bytes import wire

GOLDEN = Path(__file__).parent / "golden"
CLOSED = (
    ClosedGroup(group_id="1" * 32, outcome=GroupOutcome.TRAINED, reward_mean=0.25),
    ClosedGroup(group_id="2" * 32, outcome=GroupOutcome.DROPPED, reason="lost"),
)
EXAMPLES: dict[str, tuple[Topic[Any], Record]] = {
    "prompt": (PROMPTS, a_prompt()),
    "progress": (PRODUCERS, a_progress()),
    "generated": (ROLLOUTS, a_generated(turns=(a_turn(spans=((3, 0, 2), (4, 2, 6))),))),
    "generated_text": (ROLLOUTS, a_generated(turns=(a_text_turn(),), generator=a_generator(tokenizer_sha256=""))),
    "generated_named": (ROLLOUTS, a_generated(generator=a_generator(renderer="renderers 0.1.12 qwen3"))),
    "generated_tools": (
        ROLLOUTS,
        a_generated(
            turns=(
                a_tool_turn(reasoning="Add them.", num_cached_tokens=4),
                a_text_turn(model="summarizer", turn_type="summarization", turn_number=1, trains=False),
            ),
            observations={"session": '{"reward": 0.5}'},
        ),
    ),
    "generated_unresolved": (ROLLOUTS, a_generated(status=Status.UNRESOLVED)),
    "generated_served": (
        SERVE_ROLLOUTS,
        a_served_answer(
            choice=1,
            turns=(a_turn(is_plain=False, sampling='{"presence_penalty": 0.5}', finish_reason=FinishReason.ABORT),),
        ),
    ),
    "feedback": (FEEDBACK, a_feedback()),
    "feedback_text": (FEEDBACK, a_feedback(rollout_id="a" * 32 + "-1", response_id=None, number=None, text="too long")),
    "scored": (SCORED, a_rollout(0.5)),
    "scored_turns": (
        SCORED,
        a_rollout(
            scoring=a_scoring(
                turn_scores=(
                    TurnScore(turn=0, reward=0.5, components={"right": 0.5}),
                    TurnScore(turn=2, failure=a_failure("late", FailureCode.TIMEOUT)),
                )
            )
        ),
    ),
    "scored_failed": (SCORED, a_rollout(status=Status.FAILED)),
    "turn_progress": (PROGRESS, a_turn_progress()),
    "session_progress": (
        PROGRESS,
        a_turn_progress(kind=ProgressKind.SESSION, turn=None, tools="counter", session_id="5f0c", session_attempt=2),
    ),
    "ended_progress": (
        PROGRESS,
        a_turn_progress(kind=ProgressKind.ENDED, number=2, turn=None, observations={"page": "3"}),
    ),
    "prompt_named": (
        PROMPTS,
        a_prompt(messages=(Message(role="assistant", content="7", name="adder", reasoning="5 + 2"),)),
    ),
    "published": (WEIGHTS, published()),
    "applied": (WEIGHTS_APPLIED, applied()),
    "entry": (LEDGER, an_entry()),
    "entry_drops": (LEDGER, an_entry(EntryKind.DROPS)),
    "entry_closed": (LEDGER, an_entry(closed=CLOSED)),
    "entry_skip": (LEDGER, an_entry(EntryKind.SKIP, skipped=(SkippedRecord(topic="weights", partition=0, offset=17),))),
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_committed_schema_is_what_the_model_implies_field_by_field(record: type[Record]) -> None:
    committed = {field["name"]: field for field in current_schema(record)["fields"]}
    implied = {field["name"]: field for field in avro_schema(record)["fields"]}
    assert list(committed) == list(record.model_fields)
    for name, field in implied.items():
        assert committed[name] == field
    assert current_schema(record) == avro_schema(record)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_and_field_says_what_it_is(record: type[Record]) -> None:
    assert not [where for where in _undocumented(current_schema(record)) if where]


def test_there_is_one_schema_file_a_record_and_none_besides() -> None:
    names = {file.name for file in files("rollstream.schemas").joinpath("avro").iterdir()}
    assert names == {f"{record.__name__}.avsc" for record in RECORDS} | {"manifest.json"}
    ids = [entry.schema_id for entry in manifest()]
    assert len(set(ids)) == len(ids)
    assert check_packaged() == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_newest_version_in_the_manifest_is_the_committed_schema(record: type[Record]) -> None:
    versions = [entry for entry in manifest() if entry.record == record.__name__]
    assert versions[-1].schema == current_schema(record)
    assert [entry.version for entry in versions] == list(range(1, len(versions) + 1))


PROMPT = current_schema(type(a_prompt()))
PLAIN_HASH = "5f604b831c530921b1dfbdb21ffc178c9067af73967eb253b1827c0170077885"
TENANT = {"name": "tenant", "type": "string"}
CHANGES: dict[str, tuple[Callable[[], Schema], str]] = {
    "a field without default removed": (lambda: _without(PROMPT, "prompt_id"), "version 1.*prompt_id"),
    "a field without default added": (lambda: _with(PROMPT, TENANT), "PromptSubmitted.*tenant"),
    "a field with default added": (lambda: _with(PROMPT, {**TENANT, "default": ""}), ""),
    "a field with default removed": (lambda: _without(PROMPT, "metadata"), ""),
    "a union branch added": (lambda: _retyped(["null", "long", "string"], "weight_version"), "weight_version"),
    "a type changed deep inside": (lambda: _retyped("string", "source", "row"), "source.row"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_unless_old_and_new_programs_read_each_others_records(change: str) -> None:
    changed, said = CHANGES[change]
    problems = _problems(changed())
    assert any(re.search(said, problem) for problem in problems) if said else problems == []


def test_widening_an_int_is_refused_since_old_readers_cannot_follow() -> None:
    entry = ManifestEntry(schema_id=1, record="PromptSubmitted", version=1, schema=_retyped("int", "group_size"))
    problems = incompatibilities(PROMPT, [entry])
    assert any("a reader of version 1" in problem for problem in problems), problems


def test_every_older_version_counts_not_only_the_newest() -> None:
    first = ManifestEntry(schema_id=1, record="PromptSubmitted", version=1, schema=PROMPT)
    without = _without(PROMPT, "metadata")
    second = ManifestEntry(schema_id=2, record="PromptSubmitted", version=2, schema=without)
    again = _with(without, {"name": "metadata", "type": "string", "default": ""})
    assert incompatibilities(again, [second]) == []
    assert incompatibilities(again, [first, second])


def test_a_new_enum_symbol_is_allowed_and_old_readers_see_unknown() -> None:
    schema = copy.deepcopy(PROMPT)
    _field(schema, "purpose")["type"]["symbols"].append("rehearse")
    assert _problems(schema) == []
    plain = {**a_prompt().to_avro(), "purpose": "rehearse"}
    decoded = AvroCodec(PROMPTS, _Registry({1: PROMPT, 2: schema})).decode(wire(2, schema, plain))
    assert decoded.purpose.value == "UNKNOWN"


def changed_manifest(change: Callable[[ManifestEntry], Schema]) -> tuple[ManifestEntry, ...]:
    """The manifest with other schemas."""
    return tuple(
        ManifestEntry(schema_id=one.schema_id, record=one.record, version=one.version, schema=change(one))
        for one in manifest()
    )


def test_an_update_appends_a_changed_record_under_a_fresh_id_and_nothing_where_nothing_changed() -> None:
    unchanged = updated_manifest(manifest())
    assert (unchanged.added, unchanged.entries) == ((), manifest())
    older = changed_manifest(
        lambda one: _without(one.schema, "metadata") if one.record == "PromptSubmitted" else one.schema
    )
    current_version = max(entry.version for entry in older if entry.record == "PromptSubmitted")
    update = updated_manifest(older)
    assert [(entry.record, entry.version) for entry in update.added] == [("PromptSubmitted", current_version + 1)]
    assert update.added[0].schema_id == max(entry.schema_id for entry in older) + 1
    assert update.entries[: len(older)] == older


def test_an_update_refuses_an_incompatible_model() -> None:
    with pytest.raises(IncompatibleSchemaError, match=r"LedgerEntry.*added"):
        updated_manifest(changed_manifest(lambda one: _with(one.schema, {"name": "added", "type": "string"})))


def test_a_change_of_docs_alone_keeps_id_and_version() -> None:
    newest = {entry.record: entry.version for entry in manifest()}
    entries = changed_manifest(
        lambda one: _in_other_words(one.schema) if one.version == newest[one.record] else one.schema
    )
    assert entries != manifest()
    update = updated_manifest(entries)
    assert (update.added, update.entries) == ((), manifest())


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes_decode_to_the_record_and_it_encodes_to_them(name: str) -> None:
    topic, record = EXAMPLES[name]
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert AvroCodec(topic).decode(golden) == record
    assert AvroCodec(topic).encode(record) == golden


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*_v*.hex")), ids=lambda golden: golden.stem)
def test_bytes_that_an_older_version_wrote_decode_to_the_record_with_defaults(golden: Path) -> None:
    topic, record = EXAMPLES[golden.stem.rpartition("_v")[0]]
    assert AvroCodec(topic).decode(bytes.fromhex(golden.read_text())) == record


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_client_with_nothing_but_the_schema_file_reads_the_bytes(name: str) -> None:
    topic, record = EXAMPLES[name]
    value = AvroCodec(topic).encode(record)
    path = files("rollstream.schemas").joinpath("avro").joinpath(f"{type(record).__name__}.avsc")
    plain = fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(path.read_text()))
    assert plain == json_like(record.to_avro())


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        (PROMPTS, ("metadata",)),
        (PRODUCERS, ("recently_closed",)),
        (ROLLOUTS, ("failure",)),
        (SCORED, ("scoring", "components")),
        (WEIGHTS, ("dtype",)),
        (WEIGHTS_APPLIED, ("error",)),
        (LEDGER, ("metrics",)),
        (FEEDBACK, ("tags",)),
        (PROGRESS, ("tools",)),
    ],
    ids=lambda value: getattr(value, "name", ".".join(value) if isinstance(value, tuple) else None),
)
def test_a_new_reader_reads_what_an_old_writer_wrote_before_the_field_existed(
    topic: Topic[Any], path: tuple[str, ...]
) -> None:
    record = _example_of(topic)
    old, plain = copy.deepcopy(current_schema(type(record))), json_like(record.to_avro())
    *above, name = path
    inner_schema, inner_plain = old, plain
    for step in above:
        inner_schema, inner_plain = _field(inner_schema, step)["type"], inner_plain[step]
    default = _field(inner_schema, name)["default"]
    inner_schema["fields"] = _without(inner_schema, name)["fields"]
    del inner_plain[name]
    decoded = AvroCodec(topic, _Registry({1: current_schema(type(record)), 90: old})).decode(wire(90, old, plain))
    inner_plain[name] = default
    assert json_like(decoded.to_avro()) == plain


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.record is not None], ids=lambda topic: topic.name)
def test_an_old_reader_reads_what_a_new_writer_writes(topic: Topic[Any]) -> None:
    record = _example_of(topic)
    new = _with(current_schema(type(record)), {"name": "added_later", "type": "string", "default": ""})
    written = wire(90, new, {**record.to_avro(), "added_later": "x"})
    assert AvroCodec(topic, _Registry({1: current_schema(type(record)), 90: new})).decode(written) == record


def _in_other_words(schema: Schema) -> Schema:
    found: Schema = json.loads(json.dumps(schema).replace("UTC", "Universal time"))
    return found


class _Registry:
    """A registry of schemas given by id; 1 is the newest of every topic."""

    def __init__(self, schemas: dict[int, Schema]) -> None:
        self._schemas = schemas

    def id_of(self, topic: Topic[Any]) -> int:
        return 1

    def schema_of(self, schema_id: int) -> Schema:
        return self._schemas[schema_id]


def json_like(value: Any) -> Any:
    """`value` as fastavro gives it back: lists for tuples, plain strings for symbols."""
    if isinstance(value, dict):
        return {key: json_like(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [json_like(part) for part in value]
    return str(value.value) if hasattr(value, "value") else value


def _problems(schema: Schema) -> list[str]:
    return incompatibilities(schema, [entry for entry in manifest() if entry.record == schema["name"]])


def _field(schema: Schema, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(field for field in schema["fields"] if field["name"] == name)
    return found


def _retyped(kind: Any, *path: str) -> Schema:
    """The schema of prompts with another type at a place."""
    schema = copy.deepcopy(PROMPT)
    *above, name = path
    inner = schema
    for step in above:
        inner = _field(inner, step)["type"]
    _field(inner, name)["type"] = kind
    return schema


def _with(schema: Schema, field: dict[str, Any]) -> Schema:
    return {**schema, "fields": [*schema["fields"], field]}


def _without(schema: Schema, name: str) -> Schema:
    return {**schema, "fields": [field for field in schema["fields"] if field["name"] != name]}


def _example_of(topic: Topic[Any]) -> Record:
    return next(record for _, record in EXAMPLES.values() if type(record) is topic.record)


def _undocumented(schema: Any, where: str = "") -> list[str]:
    if isinstance(schema, list):
        return [found for part in schema for found in _undocumented(part, where)]
    if not isinstance(schema, dict):
        return []
    found = [where] if schema.get("type") == "record" and not schema.get("doc") else []
    for field in schema.get("fields", []):
        here = f"{where}.{field['name']}"
        found += ([] if field.get("doc") else [here]) + _undocumented(field["type"], here)
    return found + _undocumented(schema.get("items"), where) + _undocumented(schema.get("values"), where)


def test_a_hash_of_a_prompt_is_what_it_was_before_messages_had_names() -> None:
    """Generators of two versions answer samples of one group, whose hashes must agree."""
    assert a_prompt().content_hash() == PLAIN_HASH
    named = a_prompt(messages=(Message(role="user", content="52910=", name="asker"),))
    assert named.content_hash() != PLAIN_HASH
