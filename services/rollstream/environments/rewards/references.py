"""Reads what a row gives to compare with: a text, or JSON text where the original has a list or an object."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError
from rollstream.schemas.values import text_of


def reference_of(sample: RewardInput) -> str:
    """The reference answer. Raises `RewardError` if the row has none: without it nothing is right or wrong."""
    if sample.reference_answer is None or not sample.reference_answer.strip():
        raise RewardError(
            "the row has no reference answer, so nothing can be compared: add one, or name another reward"
        )
    return sample.reference_answer


def nested(text: str) -> Any:
    """The list or object that JSON text holds; any other text as it is, "1999" included."""
    if text.lstrip()[:1] not in {"[", "{"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def as_text(value: Any) -> str | None:
    """A value of a row as a reference answer or metadata hold it: `text_of`, and None for None and for NaN."""
    value = value.tolist() if hasattr(value, "tolist") else value
    # pandas writes a missing text as NaN.
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return None if is_missing else text_of(value)


def as_metadata(values: Mapping[str, Any] | None) -> dict[str, str]:
    """A row's further values as metadata; those that are None are left out."""
    texts = {str(name): as_text(value) for name, value in (values or {}).items()}
    return {name: text for name, text in texts.items() if text is not None}
