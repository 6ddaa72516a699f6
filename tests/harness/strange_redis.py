"""Values that a stranger may write into Redis, where a stage looks for a number or for JSON."""

import json
from typing import Final

import redis

Value = str | bytes | list[str] | dict[str, str]

STRANGE_COUNTS: Final[tuple[Value, ...]] = (
    "abc", "", " ", "-5", "-1", "1.5", "1e3", "0x10", "NaN", "inf", "1_000", "+3", " 3", "\u0665", "\x00", "3\x00",
    b"\xff\xfe", str(2**31), str(2**63 - 1), str(-(2**63)), str(2**63), "9" * 40, "9" * 5000, "1001", "x" * 10**6,
    "{}", "[1]", "null", "true", ["a", "list"], {"a": "hash"},
)  # fmt: skip
"""Instead of how often a record was started."""

STRANGE_STATES: Final[tuple[Value, ...]] = (
    "", "no JSON", "7", "null", "[]", '"text"', "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "NaN", b"\xff\xfe",
    *(json.dumps({"stage": "producer", **state}) for state in (
        {"share": 10**4000, "bound": 1}, {"share": -(10**4000), "bound": 1}, {"share": 1, "bound": 10**4000},
        {"share": True, "bound": True}, {"share": "x", "bound": None}, {"share": [1], "bound": {}},
        {"share": -5, "bound": -5}, {"share": 2**62, "bound": 1},
    )),
    *(json.dumps({"stage": stage, "version": version, "in_flight": number, "tokens_per_second": number})
      for stage in ("generator", "\x1b[2J[bold]", None, 7, ["x"])
      for version, number in ((10**4000, 1), ("x", "y"), (None, None), ([1], {}), (-1, float("inf")))),
    ["a", "list"], {"a": "hash"},
)  # fmt: skip
"""Instead of what a living process says of itself."""


def write_strange(client: redis.Redis, key: str, value: Value) -> None:
    """Put a value of any kind there, instead of what lies there."""
    client.delete(key)
    if isinstance(value, list):
        client.rpush(key, *value)
    elif isinstance(value, dict):
        client.hset(key, mapping=value)  # type: ignore[arg-type]
    else:
        client.set(key, value)
