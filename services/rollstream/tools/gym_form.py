"""What a resources server of NeMo Gym is told: the row of a task, and a sample as OpenAI's Responses API has it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from rollstream.rows.conversation import REFERENCE

ROW: Final = "row"
"""The entry of a prompt's metadata that holds the whole row, JSON text. Without it the row is made of the prompt."""


def row_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a task. Fields of the metadata are fields of a row that is made, as text."""
    metadata = task.get("metadata") or {}
    row = _object(metadata.get(ROW))
    if row is not None:
        return row
    asked = {
        "input": items_of(task.get("messages") or ()),
        "tools": [from_json(one) for one in task.get("tools") or ()],
    }
    return {**metadata, REFERENCE: task.get(REFERENCE), "responses_create_params": asked}


def response_of(session_id: str, task: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The sample as one response: what follows the task's messages."""
    asked = row_of(task).get("responses_create_params")
    tools = asked.get("tools") if isinstance(asked, dict) else None
    num_asked = len(task.get("messages") or ())
    return {
        "id": session_id,
        "object": "response",
        "created_at": 0.0,
        "model": "policy",
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": tools or [],
        "output": items_of((said.get("messages") or ())[num_asked:]),
    }


def items_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with `call_id`, `name` and `arguments` of each call, as items of the Responses API."""
    return [item for message in messages for item in _items_of(message)]


def _items_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content") or ""
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id") or "", "output": content}]
    calls = [
        {"type": "function_call", "call_id": call["call_id"], "name": call["name"], "arguments": call["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    if role != "assistant":
        return [{"type": "message", "role": role, "content": content}]
    text: dict[str, Any] = {"type": "output_text", "text": content, "annotations": []}
    said = {"type": "message", "id": "", "role": "assistant", "status": "completed", "content": [text]}
    return ([said] if content or not calls else []) + calls


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
