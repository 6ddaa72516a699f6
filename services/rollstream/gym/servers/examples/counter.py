"""A counter a session (Gym's `example_session_state_mgmt`): tools add to it and read it, the verdict compares it."""

from collections.abc import Mapping
from typing import Any


class SessionCounter:
    """Begins at the row's `initial_count`; right if it ends at its `expected_count`."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self, row: Mapping[str, Any]) -> None:
        self._count = int(row.get("initial_count", 0))

    def increment_counter(self, count: int) -> dict[str, bool]:
        """Add `count` to the counter."""
        self._count += count
        return {"success": True}

    def get_counter_value(self) -> dict[str, int]:
        """Read the counter."""
        return {"count": self._count}

    def verify(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"reward": float(self._count == request["expected_count"])}
