"""`rewards`: what an answer is worth, by whether it is right and whether it ended by itself."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from rollstream.environments.rewards.table import RewardTable

PURE_SUCCESS: Final = "pure_success"


def _preset(given: Any) -> Any:
    if isinstance(given, str):
        if given != PURE_SUCCESS:
            raise ValueError(f"must be {PURE_SUCCESS}, or a table of rewards: write the values of your preset")
        return {}
    return given


RewardChoice = Annotated[RewardTable, BeforeValidator(_preset)]
"""A table, or the name of the preset."""
