"""Structured output: JSON that fits the row's schema, and schemas that must not do harm."""

import json
import socket
from typing import Any

import pytest

from rollstream.environments.load import load_environment
from rollstream.schemas.errors import RewardError
from tests.harness.reward_inputs import an_answer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def scored(completion: str, schema: Any = SCHEMA) -> tuple[float, dict[str, float]]:
    rubric = load_environment("structured_output").rubric
    return rubric.score(an_answer(completion, json_schema=schema))


@pytest.mark.parametrize(
    ("completion", "fits", "is_json"),
    [
        ('{"name": "Ada", "age": 36}', 1, 1),
        ('  {"name": "Ada", "age": 36}\n', 1, 1),
        ('Here it is:\n```json\n{"name": "Ada", "age": 36}\n```\n', 1, 1),
        ('```\n{"name": "Ada", "age": 36}\n```', 1, 1),
        ('```json\n{"name": "A", "age": 1}\n```\n```json\n{"name": "B", "age": 2}\n```', 0, 0),
        ('{"name": "Ada", "age": 36.5}', 0, 1),
        ('{"name": "Ada", "age": -1}', 0, 1),
        ('{"name": "Ada"}', 0, 1),
        ('{"name": "Ada", "age": 36, "sex": "f"}', 0, 1),
        ('{"name": "Ada", "age": 36', 0, 0),
        ("{'name': 'Ada', 'age': 36}", 0, 0),
        ('{"name": "Ada", "age": NaN}', 0, 0),
        ('{"name": "Ada", "age": ' + "9" * 5000 + "}", 0, 0),
        ("[" * 100_000, 0, 0),
        ("", 0, 0),
        ("word " * 20_000, 0, 0),
    ],
)
def test_a_completion_is_json_that_fits_or_it_is_not(completion: str, fits: float, is_json: float) -> None:
    assert scored(completion) == (fits, {"fits_schema": fits, "is_json": is_json})


@pytest.mark.parametrize("schema", ["", "{", "[]", "7", {"type": "no such type"}, {"pattern": "("}])
def test_a_row_without_a_usable_schema_is_unscored(schema: Any) -> None:
    with pytest.raises(RewardError, match="json_schema"):
        scored("{}", schema)


def test_a_schema_that_refers_elsewhere_is_an_error_and_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        port = listening.getsockname()[1]
        with pytest.raises(RewardError, match="Unresolvable"):
            scored("{}", {"$ref": f"http://127.0.0.1:{port}/schema.json"})
        with pytest.raises(TimeoutError):
            listening.accept()


def test_a_schema_may_refer_to_its_own_parts() -> None:
    tree = {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"}
    assert scored("[[], [[]]]", json.dumps(tree))[0] == 1.0
    assert scored("[[], [7]]", json.dumps(tree))[0] == 0.0
