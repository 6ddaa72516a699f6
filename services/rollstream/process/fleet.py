"""Which processes of a run live: their heartbeats in Redis, which holds only what may be lost."""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import redis

_LOG = logging.getLogger(__name__)
EVALUATING: Final = "evaluate"
"""The stage that a process reports which evaluates a run's versions."""
_TTL_SECONDS = 15
_BEAT_SECONDS = 2.0
_MOST_CHARACTERS = 1024
_LARGEST = 1e9
# Redis looks at 10 keys a call by default; a database with many other keys would take many calls.
_SCANNED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The share of each living producer, in groups, and the bound of their sum."""

    by_member: Mapping[str, int]
    bound: int

    @property
    def total(self) -> int:
        return sum(self.by_member.values())


def shares_of(members: Mapping[str, Mapping[str, Any]]) -> Shares | None:
    """The shares that `members` report, with the lowest bound among them; None if no member is a producer."""
    producers = {
        member: state
        for member, state in members.items()
        if all(isinstance(state.get(name), int) for name in ("share", "bound"))
    }
    if not producers:
        return None
    return Shares(
        by_member={member: state["share"] for member, state in producers.items()},
        bound=min(state["bound"] for state in producers.values()),
    )


class Fleet:
    """Heartbeats of one run's processes. Without Redis nothing fails, but no process is seen."""

    def __init__(self, redis_url: str | None, run: str) -> None:
        self._redis = _connection(redis_url) if redis_url else None
        self._prefix = f"{run}:fleet:"
        self._is_reported_gone = False

    def beat(self, member_id: str, state: dict[str, Any]) -> None:
        """Say that `member_id` lives. `state` (JSON) expires after 15 s without another beat."""
        if self._redis is None:
            return
        from redis import RedisError

        try:
            self._redis.set(self._prefix + member_id, json.dumps(state), ex=_TTL_SECONDS)
            self._is_reported_gone = False
        except RedisError as error:
            self._report_gone(error)

    def members(self) -> dict[str, dict[str, Any]]:
        """Member id to state; empty without Redis."""
        if self._redis is None:
            return {}
        from redis import RedisError

        try:
            keys = sorted(self._redis.scan_iter(self._prefix + "*", count=_SCANNED_AT_ONCE))
            states = self._redis.mget(keys) if keys else []
        except RedisError as error:
            self._report_gone(error)
            return {}
        pairs = ((key.removeprefix(self._prefix), _state(text)) for key, text in zip(keys, states, strict=True))
        return {member: state for member, state in pairs if state is not None}

    def _report_gone(self, error: Exception) -> None:
        # One line for each time that Redis goes away: beats come every few seconds.
        if not self._is_reported_gone:
            _LOG.warning("Redis is gone, the fleet is not shown until it is back: %s", error)
            self._is_reported_gone = True


@contextmanager
def beating(beat: Callable[[], None]) -> Iterator[None]:
    """Call `beat` now and then while the block runs, in a thread of its own, so that a slow Redis delays nothing."""
    ended = threading.Event()

    def keep_beating() -> None:
        beat()
        while not ended.wait(_BEAT_SECONDS):
            beat()

    thread = threading.Thread(target=keep_beating, name="fleet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _state(text: str | bytes | None) -> dict[str, Any] | None:
    """A heartbeat; None if it expired while it was read, or if it is none: anyone may write into Redis.

    Only short texts and numbers from 0 to 10^9 are taken over: others may raise wherever they are shown or added.
    """
    try:
        state = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    return {name: value for name, value in state.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MOST_CHARACTERS
    return value is None or (type(value) in (int, float) and 0 <= value <= _LARGEST)  # type: ignore[operator]


def _connection(redis_url: str) -> "redis.Redis":
    # Only where Redis is used: beside vLLM, which installs OpenTelemetry, this import takes half a second and more.
    import redis

    # Short timeouts: whoever beats or asks has other work, and does without an answer.
    return redis.Redis.from_url(
        redis_url,
        socket_timeout=1.0,
        socket_connect_timeout=1.0,
        decode_responses=True,
        encoding_errors="replace",
    )
