"""Builds what a reward function gets."""

import json
from typing import Any

from rollstream.environments.rubric import RewardInput


def an_answer(completion: str, reference: str | None = None, **metadata: Any) -> RewardInput:
    """One turn with this text. What is no text in `metadata` becomes JSON text."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
    return RewardInput(
        completion=completion, assistant_messages=(completion,), reference_answer=reference, metadata=texts
    )
