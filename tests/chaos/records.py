"""Records as an outside client knows them: by Avro and the packaged .avsc files alone."""

import io
import json
import struct
import uuid
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import fastavro

Fields = dict[str, Any]

_RECORDS = {
    "prompts": "PromptSubmitted",
    "producers": "ProducerProgress",
    "rollouts": "RolloutGenerated",
    "scored": "RolloutScored",
    "eval-prompts": "PromptSubmitted",
    "eval-rollouts": "RolloutGenerated",
    "eval-scored": "RolloutScored",
    "serve-prompts": "PromptSubmitted",
    "serve-rollouts": "RolloutGenerated",
    "serve-scored": "RolloutScored",
    "ingest-prompts": "PromptSubmitted",
    "feedback": "FeedbackGiven",
    "weights": "WeightsPublished",
    "weights-applied": "WeightsApplied",
    "ledger": "LedgerEntry",
}


def _schema(record: str) -> Any:
    return fastavro.parse_schema(json.loads((files("rollstream.schemas") / "avro" / f"{record}.avsc").read_text()))


def _newest_id(record: str) -> int:
    """The id under which its .avsc is registered."""
    manifest = json.loads((files("rollstream.schemas") / "avro" / "manifest.json").read_text())
    return max(int(entry["id"]) for entry in manifest if entry["record"] == record)


_SCHEMAS = {topic: _schema(record) for topic, record in _RECORDS.items()}
_PROMPT_ID = _newest_id("PromptSubmitted")


def decoded(topic: str, value: bytes | None) -> Fields | None:
    """The fields of a record in Confluent wire format, None if it can't be read."""
    if not value or value[0] != 0 or len(value) < 5:
        return None
    try:
        fields: Fields = fastavro.schemaless_reader(io.BytesIO(value[5:]), _SCHEMAS[topic], None)
    except (EOFError, ValueError, IndexError, OverflowError, struct.error):
        return None
    return fields


def encoded_prompt(content: str, **fields: Any) -> bytes:
    """A `PromptSubmitted` of one user message; what `fields` leaves out takes the schema's default."""
    prompt = {
        "prompt_id": f"outside/{uuid.uuid4().hex}",
        "group_id": uuid.uuid4().hex,
        "messages": [{"role": "user", "content": content}],
        "sampling": {"max_tokens": 12},
        "submitted_at": datetime.now(UTC),
        **fields,
    }
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _SCHEMAS["prompts"], prompt)
    return b"\0" + _PROMPT_ID.to_bytes(4, "big") + body.getvalue()
