"""Values of synonyms in several steps (Gym's `example_multi_step`): ask for each, then name all of them in order."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class MultiStep:
    """A word's value is the sum of its code points; right if the last list of values is the row's."""

    def get_synonym_value(self, synonym: str) -> dict[str, int]:
        """Get the value of a synonym."""
        return {"synonym_value": sum(map(ord, synonym))}

    def extract_synonym_values(self, synonym_values: list[int]) -> dict[str, bool]:
        """Give the values of all synonyms, in the order of the question."""
        return {"success": True}

    def verify(self, request: Mapping[str, Any]) -> dict[str, Any]:
        expected = request["expected_synonym_values"]
        found = _last_values(request["response"]["output"])
        is_right = found == expected
        overlap = len(set(found) & set(expected)) / max(1, len(set(expected)))
        return {
            "reward": float(is_right),
            "parsed_synonym_values": found,
            "accuracy": is_right,
            "set_overlap": overlap,
            "original_term_minefield_hit": request.get("minefield_label_value") in found,
            "order_instruction_following_failure": not is_right and overlap == 1.0,
        }


def _last_values(items: Sequence[Any]) -> list[int]:
    """What the last call of `extract_synonym_values` named; none if there is no call, or one that can't be read."""
    for item in reversed(items):
        if item.get("type") == "function_call" and item.get("name") == "extract_synonym_values":
            try:
                values = json.loads(item["arguments"])["synonym_values"]
            except (ValueError, TypeError, KeyError):
                return []
            is_list = isinstance(values, list) and all(type(value) is int for value in values)
            return values if is_list else []
    return []
