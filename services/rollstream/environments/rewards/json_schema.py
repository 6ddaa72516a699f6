"""The reward of structured output: whether a completion is JSON that fits the row's JSON schema."""

import json
import re
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, NoReturn

from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import ConfigurationError, RewardError

_FENCED: Final = re.compile(r"(?ms)^```(?:json|JSON)?[ \t]*\n(.*?)^```")


def load_jsonschema() -> None:
    """Import the library. Raises `ConfigurationError` if it is not installed."""
    try:
        import_module("jsonschema")
    except ImportError as error:
        raise ConfigurationError(
            f"checking structured output needs jsonschema, which can't be imported ({error}): "
            "install rollstream[rewards]"
        ) from error


def fits_schema(sample: RewardInput) -> float:
    """1 if the completion is JSON that fits metadata `json_schema` (JSON text), else 0.

    The JSON is the whole completion, or its only fenced block. Raises `RewardError` for a row without a usable schema.
    A `$ref` to anywhere but the schema itself is an error too: nothing is ever fetched. `format` is not checked.
    """
    validator = _validator(_schema_text(sample))
    try:
        value = written_json(sample.completion)
    except (ValueError, RecursionError):
        return 0.0
    return float(validator.is_valid(value))


def is_json(sample: RewardInput) -> float:
    """1 if the completion is JSON at all, else 0."""
    try:
        written_json(sample.completion)
    except (ValueError, RecursionError):
        return 0.0
    return 1.0


def written_json(completion: str) -> Any:
    """The JSON value that a completion is, or that its only fenced block holds; `ValueError` if it is none.

    NaN and Infinity are no JSON.
    """
    blocks = _FENCED.findall(completion)
    if len(blocks) > 1:
        raise ValueError("which of several blocks is meant?")
    return json.loads(blocks[0] if blocks else completion, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _schema_text(sample: RewardInput) -> str:
    text = sample.metadata.get("json_schema")
    if not text:
        raise RewardError("the row has no metadata 'json_schema', JSON text: add it, or name another reward")
    return text


@lru_cache(maxsize=64)
def _validator(schema_text: str) -> Any:
    validators = import_module("jsonschema.validators")
    empty = import_module("referencing").Registry()
    try:
        schema = json.loads(schema_text)
        if not isinstance(schema, dict | bool):
            raise ValueError(f"it is a {type(schema).__name__}")
        kind = validators.validator_for(schema, default=validators.Draft202012Validator)
        kind.check_schema(schema)
    except Exception as error:
        # Also what the library raises for a schema that is none; it can't be named without importing it above.
        why = getattr(error, "message", str(error))
        raise RewardError(f"metadata 'json_schema' is no JSON schema: {why[:300]}; correct the row") from error
    # An empty registry: without one the library would fetch what a reference names.
    return kind(schema, registry=empty)
